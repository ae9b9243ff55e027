"""Draw `the-idea.svg`: write, recall, project. After a change run `python docs/picture.py`."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

FILE = Path(__file__).with_name("the-idea.svg")

# Okabe and Ito's colours, which people with any colour vision tell apart; each also has a label.
ADDRESS, VALUE, INK, SOFT, LINE = "#0072b2", "#d55e00", "#1a1a1a", "#555555", "#d0d0d0"
BLUES, ORANGES = ("#e3eef6", "#b5d2e8", "#6aa7d1"), ("#fbe9dd", "#f3c39f", "#e58a4c")
GREYS = ("#ececec", "#cfcfcf", "#a8a8a8", "#7d7d7d")
CELL = 20
# The memory that is shown: addresses down, values across, a digit a cell's shade.
CONTENT = ("1203", "0131", "2010", "3102", "0213", "1021")
READERS = (
    ("plain", "c = q", "the query as it is"),
    ("ccq", "c = q − λ Σ q", "without the directions that all keys share"),
    ("interdomain", "c = U q", "project q through U, the memory of the keys"),
)


def draw() -> str:
    """The picture as SVG text; the same each time."""
    parts = [
        *_write(15),
        *_recall(330),
        *_project(645),
        _line(325, 30, 325, 350),
        _line(640, 30, 640, 350),
        _line(25, 370, 935, 370),
        *_readers(),
        *_legend(),
    ]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 515" width="960" height="515" '
        'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif">\n'
        "<title>Write, recall and project: what is done with a memory</title>\n"
        '<rect width="960" height="515" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _write(x: float) -> list[str]:
    left, top = x + 118, 150
    return [
        *_heading(x, "write", "at each token, by the write rule"),
        *_grid(left, top - 50, ("2012",), ORANGES, VALUE),
        _text(left - 12, top - 35, "v", colour=VALUE, anchor="end"),
        *_grid(left - 50, top, tuple("120102"), BLUES, ADDRESS),
        _text(left - 62, top + 65, "b", colour=ADDRESS, anchor="end"),
        *_grid(left, top, CONTENT, GREYS, INK),
        _text(left + 92, top + 65, "S"),
        *_arrow(left + 40, top - 28, left + 40, top - 3, VALUE),
        *_arrow(left - 28, top + 60, left - 3, top + 60, ADDRESS),
        *_formula(x, "S  ←  T S + b v′", "T: what the memory keeps, loses, erases"),
    ]


def _recall(x: float) -> list[str]:
    left, top = x + 118, 100
    return [
        *_heading(x, "recall", "from the address side to the value side"),
        *_grid(left - 50, top, tuple("021201"), BLUES, ADDRESS),
        _text(left - 62, top + 65, "c", colour=ADDRESS, anchor="end"),
        *_grid(left, top, CONTENT, GREYS, INK),
        _text(left + 92, top + 65, "S"),
        *_arrow(left - 28, top + 60, left - 3, top + 60, ADDRESS),
        *_arrow(left + 40, top + 122, left + 40, top + 147, VALUE),
        *_grid(left, top + 150, ("1021",), ORANGES, VALUE),
        _text(left - 12, top + 165, "o", colour=VALUE, anchor="end"),
        *_formula(x, "o = S′ c", "what the layer gets out"),
    ]


def _project(x: float) -> list[str]:
    left, top = x + 118, 150
    return [
        *_heading(x, "project", "from the value side to the address side"),
        *_grid(left, top - 50, ("0212",), ORANGES, VALUE),
        _text(left - 12, top - 35, "y", colour=VALUE, anchor="end"),
        *_grid(left, top, CONTENT, GREYS, INK),
        _text(left + 92, top + 65, "S"),
        *_grid(left - 50, top, tuple("201021"), BLUES, ADDRESS),
        _text(left - 62, top + 65, "w", colour=ADDRESS, anchor="end"),
        *_arrow(left + 40, top - 28, left + 40, top - 3, VALUE),
        *_arrow(left - 2, top + 60, left - 27, top + 60, ADDRESS),
        *_formula(x, "w = S y", "how much of y each address holds"),
    ]


def _readers() -> list[str]:
    parts = [_text(30, 402, "A read rule makes the address c of the query q:", weight="bold")]
    for index, (name, formula, words) in enumerate(READERS):
        y = 434 + 28 * index
        parts += [
            _text(50, y, name, weight="bold"),
            _text(180, y, formula, colour=ADDRESS, size=17),
            _text(340, y, words, colour=SOFT),
        ]
    return parts


def _legend() -> list[str]:
    parts: list[str] = []
    for index, (words, shades, colour) in enumerate(
        (
            ("address side, size M", BLUES, ADDRESS),
            ("value side, size V", ORANGES, VALUE),
            ("memory S, M × V a head", GREYS, INK),
        )
    ):
        y = 418 + 28 * index
        parts += [*_grid(735, y, ("1",), shades, colour), _text(766, y + 15, words, size=13)]
    return parts


def _heading(x: float, name: str, words: str) -> list[str]:
    return [
        _text(x + 150, 44, name, size=20, anchor="middle", weight="bold"),
        _text(x + 150, 70, words, size=13, colour=SOFT, anchor="middle"),
    ]


def _formula(x: float, formula: str, words: str) -> list[str]:
    return [
        _text(x + 150, 316, formula, size=18, anchor="middle"),
        _text(x + 150, 342, words, size=13, colour=SOFT, anchor="middle"),
    ]


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 15,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def _grid(
    x: float, y: float, rows: tuple[str, ...], shades: tuple[str, ...], colour: str
) -> list[str]:
    """Squares, each with the shade that its digit names, in a frame."""
    squares = [
        f'<rect x="{x + CELL * column:g}" y="{y + CELL * row:g}" width="{CELL}" height="{CELL}" '
        f'fill="{shades[int(digit)]}" stroke="#ffffff"/>'
        for row, digits in enumerate(rows)
        for column, digit in enumerate(digits)
    ]
    frame = (
        f'<rect x="{x:g}" y="{y:g}" width="{CELL * len(rows[0])}" height="{CELL * len(rows)}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )
    return [*squares, frame]


def _arrow(x1: float, y1: float, x2: float, y2: float, colour: str) -> list[str]:
    """A shaft and a head; a straight one, along an axis."""
    along_x, along_y = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    back_x, back_y = x2 - 9 * along_x, y2 - 9 * along_y
    head = (
        f"{x2:g},{y2:g} {back_x + 5 * along_y:g},{back_y + 5 * along_x:g} "
        f"{back_x - 5 * along_y:g},{back_y - 5 * along_x:g}"
    )
    return [
        _line(x1, y1, back_x, back_y, colour, 2),
        f'<polygon points="{head}" fill="{colour}"/>',
    ]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = LINE, width: float = 1) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
        f'stroke-width="{width:g}"/>'
    )


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
