"""`stoker pack SRC DST`: re-layout a data set into shards that load at memory speed."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.errors import UsageError

if TYPE_CHECKING:
    from stoker.pack.plan import Plan


def _sides(example: str) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...] | None]:
    def parse(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        parts = value.replace("x", ",").split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            raise click.BadParameter(f"{value!r} is no size; expected {example}")
        return tuple(int(part) for part in parts)

    return parse


@click.command(context_settings={"show_default": True})
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DST", type=click.Path(path_type=Path))
@click.option("--shuffle", is_flag=True, help="Put all rows in one random order, also when they are more than memory.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the shuffle.")
@click.option("--compress", is_flag=True, help="Compress Parquet and Zarr with zstd.")
@click.option("--shard-size", default="256MB", help="About the size of an output file.")
@click.option("--row-group", type=click.IntRange(1), help="Rows of a Parquet row group [default: about 1 MiB].")
@click.option(
    "--patch",
    callback=_sides("a number for each axis, such as 72,136,136"),
    help="Of volumes: the patch that chunks must suit, such as 72,136,136.",
)
@click.option(
    "--size",
    callback=_sides("pixels, such as 256, or 224,320 with --raw"),
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
    in the same folders or, with --raw, records of pixels. SRC are files, folders or quoted globs, or one plan that
    --plan wrote. DST appears when it is whole; a stopped or killed run goes on when run again.
    """
    from stoker.pack import execute

    memory_bytes = _bytes("--memory", given["memory"])
    plan = _plan(sources, given, memory_bytes)
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


def _plan(sources: tuple[str, ...], given: dict[str, Any], memory_bytes: int) -> "Plan":
    from stoker.pack import plan as plans
    from stoker.pack.kinds import plan_for

    if len(sources) == 1 and sources[0].endswith(".json") and Path(sources[0]).is_file():
        return plans.from_json(Path(sources[0]).read_bytes(), sources[0])
    options = plans.Options(
        shuffle=given["shuffle"],
        seed=given["seed"],
        compress=given["compress"],
        shard_bytes=_bytes("--shard-size", given["shard_size"]),
        memory_bytes=memory_bytes,
        row_group=given["row_group"],
        patch=given["patch"],
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
    extra = f"; up to {plan.source_bytes / 1e6:,.0f} MB more while it runs" if plan.pieces else ""
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
