"""What a page is on the site: a hook of mkdocs. The home is README.md in the place of index.md."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # mkdocs loads this file by its path


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Return the text of a page with what is built; of the home README's, seen from docs/."""
    if page.file.src_uri != "index.md":
        from docs.generate import built

        return built(Path(page.file.src_uri), markdown)
    text = (ROOT / "README.md").read_text().replace("](docs/", "](").replace('"docs/', '"')
    text = re.sub(r"^!\[.*\n\n", "", text, flags=re.MULTILINE)  # badges are of another host
    return re.sub(r"\[([^]]+)\]\((?:Dockerfile|[A-Z]+(?:\.md)?)\)", r"\1", text)  # not in the site
