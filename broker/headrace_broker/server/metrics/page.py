"""A page in Prometheus' text format 0.0.4. Pure."""

from __future__ import annotations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Page:
    """Families of samples, in the order they are added."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        """Begin a family; its samples follow. `kind`: counter, gauge, summary or untyped."""
        self.lines.append(f"# HELP {name} {text}")
        self.lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, value: float, **labels: object) -> None:
        """Add one sample of the family."""
        self.lines.append(f"{name}{_labels(labels)} {value}")

    def gauge(self, name: str, text: str, value: float) -> None:
        """Add a family with one sample."""
        self.family(name, "gauge", text)
        self.sample(name, value)

    def text(self) -> bytes:
        """The page."""
        return ("\n".join(self.lines) + "\n").encode()


def _labels(labels: dict[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
