"""`python -m app` is `oncehook`."""

from app.cli import app

app()
