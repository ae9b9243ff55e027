"""One page with the table and all figures, that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from statelab.compare.export import heads, written_rows
from statelab.compare.notes import notes
from statelab.compare.table import Comparison
from statelab.figures.chart import Chart, HeatMap

__all__ = ["to_page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; }
table { border-collapse: collapse; } th { text-align: left; }
td, th { border-bottom: 1px solid #ddd; padding: .3em .8em .3em 0; white-space: nowrap; }
.wide { overflow-x: auto; }
"""


def to_page(comparison: Comparison, charts: Mapping[str, Chart | HeatMap], title: str) -> str:
    """The page as HTML; plotly's script is a part of it."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    figures = "\n".join(
        each.page().to_html(
            full_html=False, include_plotlyjs=False, div_id=name, config={"displaylogo": False}
        )
        for name, each in charts.items()
    )
    said = "\n".join(f"<li>{escape(each)}</li>" for each in notes(comparison))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<style>{_STYLE}</style>
<script>{get_plotlyjs()}</script></head>
<body><h1>{escape(title)}</h1>
<div class="wide"><table>
<thead>{_row(heads(comparison), "th")}</thead>
<tbody>{"".join(_row(row, "td") for row in written_rows(comparison))}</tbody>
</table></div>
<ul>
{said}
</ul>
{figures}
</body></html>
"""


def _row(cells: list[str], kind: str) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(each)}</{kind}>' for each in cells)}</tr>\n"
