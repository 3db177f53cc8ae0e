"""What the scripts that tests write begin with."""

from pathlib import Path

SCRIPTS = Path(__file__).parent / "planted" / "accounting"
LIGHT = f"import sys; sys.path.append({str(SCRIPTS)!r}); import light, torch; light.started()"
"""One line, without its end: a script goes on in the next."""
