"""The site's home is README.md: a hook of mkdocs puts it in the place of index.md."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Return the text of a page; of the home README's, its links as seen from docs/."""
    if page.file.src_uri != "index.md":
        return markdown
    text = (ROOT / "README.md").read_text().replace("](docs/", "](").replace('"docs/', '"')
    text = re.sub(r"^!\[.*\n\n", "", text, flags=re.MULTILINE)  # badges are of another host
    return re.sub(r"\[([^]]+)\]\((?:Dockerfile|[A-Z]+(?:\.md)?)\)", r"\1", text)  # not in the site
