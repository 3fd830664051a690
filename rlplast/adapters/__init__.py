"""Hooks inside other people's trainers; each module needs the library it is named after."""

__all__: list[str] = []
