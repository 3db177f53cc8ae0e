"""`stoker pack SRC DST`: re-layout a data set into shards that load at memory speed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.commands.numbers import sides
from stoker.errors import UsageError

if TYPE_CHECKING:
    from stoker.pack.plan import Plan


def _local(_context: click.Context, _parameter: click.Parameter, value: str) -> Path:
    """Where the result goes: renamed into its place at the end, which no store can do."""
    if "://" in value and not value.startswith("file://"):
        raise UsageError(f"DST is {value}; expected a folder of this machine, which can be copied when it is whole")
    return Path(value.removeprefix("file://"))


@click.command(context_settings={"show_default": True})
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DST", callback=_local)
@click.option("--shuffle", is_flag=True, help="Put all rows in one random order, also when they are more than memory.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the shuffle.")
@click.option("--compress", is_flag=True, help="Compress Parquet and Zarr with zstd.")
@click.option("--shard-size", default="256MB", help="About the size of an output file.")
@click.option("--row-group", type=click.IntRange(1), help="Rows of a Parquet row group [default: about 1 MiB].")
@click.option(
    "--patch",
    callback=sides("a number for each axis, such as 72,136,136"),
    help="Of volumes: the patch that chunks must suit, such as 72,136,136.",
)
@click.option(
    "--missing",
    type=click.Choice(["raise", "fill"]),
    default="raise",
    help="Of volumes: what a chunk that is not there means: an error, or empty space.",
)
@click.option(
    "--size",
    callback=sides("pixels, such as 256, or 224,320 with --raw"),
    help="Of images: the shorter side of the JPEGs; with --raw height,width.",
)
@click.option("--raw", is_flag=True, help="Of images: write pixels instead of JPEGs, as .npy records.")
@click.option("--quality", type=click.IntRange(1, 100), default=90, help="Of JPEGs.")
@click.option("--tokenizer", type=click.Path(exists=True), help="Of text: a tokenizer.json.")
@click.option("--column", default="text", help="Of text: the key (or column) that holds it.")
@click.option("--documents", type=click.Choice(["line", "file"]), default="line", help="Of .txt: what a document is.")
@click.option("--end", help="Of text: a token to put behind every document.")
@click.option("--memory", default="1GiB", help="The most memory to use.")
@click.option("--threads", type=click.IntRange(1), help="[default: the cores of this machine]")
@click.option("--dry-run", is_flag=True, help="Print the estimate and stop.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Write the plan to this file and stop.")
@click.option("--verify", is_flag=True, help="Read the result again and compare it with its checksums.")
def pack(sources: tuple[str, ...], destination: Path, **given: Any) -> None:
    """Write SRC anew as DST, in shards that load at memory speed.

    .npy records stay .npy, Parquet stays Parquet with row groups of a chosen size, volumes (with --patch) become Zarr
    with chunks that suit the patch, text (with --tokenizer) becomes tokens, images (with --size) become smaller JPEGs
    in the same folders or, with --raw, records of pixels. SRC are files, folders or quoted globs, here or in a store
    (s3://bucket/train/), or one plan that --plan wrote. DST appears when it is whole; a stopped or killed run goes on
    when run again.
    """
    from stoker.pack import execute

    memory_bytes = _bytes("--memory", given["memory"])
    plan = _plan(sources, given, memory_bytes)
    _check_said(plan.kind, from_file=_is_plan(sources))
    print(_estimate(plan, destination))
    if given["plan_file"] is not None:
        _save(plan, given["plan_file"])
    if given["dry_run"] or given["plan_file"] is not None:
        return
    try:
        fresh = execute.run(
            plan, destination, memory_bytes=memory_bytes, threads=given["threads"], verify=given["verify"]
        )
    except KeyboardInterrupt:
        print("stoker: what is done stays; run the same command again to go on", file=sys.stderr)
        raise
    print(f"{destination} is whole: see its manifest.json" if fresh else f"{destination} already holds this, whole")


def _bytes(option: str, text: str) -> int:
    from stoker.sizes import parse_bytes

    return parse_bytes(text, option, least_bytes=1 << 20)


_FOR = {
    "shuffle": ("records", "rows", "text", "volumes", "images"),
    "seed": ("records", "rows", "text", "volumes", "images"),
    "compress": ("records", "rows", "text", "volumes", "images"),
    "shard_size": ("records", "rows", "text", "images"),
    "row_group": ("rows",),
    "patch": ("volumes",),
    "missing": ("volumes",),
    "size": ("images",),
    "raw": ("images",),
    "quality": ("images",),
    "tokenizer": ("text",),
    "column": ("text",),
    "documents": ("text",),
    "end": ("text",),
}
"""The kinds of data that an option decides something of, or that refuse it themselves. A plan has settled all."""


def _is_plan(sources: tuple[str, ...]) -> bool:
    return len(sources) == 1 and sources[0].endswith(".json") and Path(sources[0]).is_file()


def _check_said(kind: str, *, from_file: bool) -> None:
    """Refuse an option that would change nothing, instead of letting somebody believe that it did."""
    context = click.get_current_context()
    for name, kinds in _FOR.items():
        if context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        option = f"--{name.replace('_', '-')}"
        if from_file:
            raise UsageError(f"{option} was settled when the plan was made; leave it out, or make a new plan")
        if kind not in kinds:
            raise UsageError(f"{option} has no meaning for {kind}; leave it out")


def _plan(sources: tuple[str, ...], given: dict[str, Any], memory_bytes: int) -> "Plan":
    from stoker.pack import plan as plans
    from stoker.pack.kinds import plan_for

    if _is_plan(sources):
        return plans.from_json(Path(sources[0]).read_bytes(), sources[0])
    options = plans.Options(
        shuffle=given["shuffle"],
        seed=given["seed"],
        compress=given["compress"],
        shard_bytes=_bytes("--shard-size", given["shard_size"]),
        memory_bytes=memory_bytes,
        row_group=given["row_group"],
        patch=given["patch"],
        missing=given["missing"],
        size=given["size"],
        raw=given["raw"],
        quality=given["quality"],
        tokenizer=given["tokenizer"],
        column=given["column"],
        documents=given["documents"],
        end=given["end"],
    )
    return plan_for(sources, options)


_WHAT = {
    "records": "files of .npy records",
    "rows": "files of Parquet rows",
    "text": "files of tokens",
    "volumes": "Zarr volumes",
    "images": "folders and files of JPEGs",
}


def _estimate(plan: "Plan", destination: Path) -> str:
    rows = "" if plan.rows is None or plan.kind == "volumes" else f", {plan.rows:,} rows"
    what = "files of pixels" if plan.settings.get("raw") else _WHAT[plan.kind]
    order = "" if plan.seed is None else f", shuffled (seed {plan.seed})"
    extra = f"; up to {plan.dealt_bytes / 1e6:,.0f} MB more while it runs" if plan.pieces else ""
    return (
        f"{len(plan.files)} files, {plan.source_bytes / 1e6:,.1f} MB{rows} → "
        f"{destination}: {len(plan.outputs)} {what}{order}, about {plan.output_bytes / 1e6:,.1f} MB{extra}"
    )


def _save(plan: "Plan", path: Path) -> None:
    from stoker.pack import plan as plans

    try:
        path.write_text(plans.to_json(plan))
    except OSError as error:
        raise UsageError(f"the plan cannot be written to {path} ({error.strerror})") from error
    print(f"the plan is in {path}; carry it out with: stoker pack {path} DST")
