"""Hooks of mkdocs: pages outside docs/ join the site, and every package gets a page of the API reference."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
# Path in the repository -> path in the site.
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "experiments/zoo/provenance.json": "provenance.json",
}


def packages() -> dict[str, list[str]]:
    """Dotted package -> its modules: all that plug-ins and notebooks import."""
    found = {
        "experiments.api": ["experiments.api", "experiments.reporting.completion", "experiments.reporting.comparison"]
    }
    for folder in [*sorted((REPOSITORY / "framework").iterdir()), REPOSITORY / "drafters"]:
        if modules := sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__"):
            package = ".".join(folder.relative_to(REPOSITORY).parts)
            found[package] = [f"{package}.{module}" for module in modules]
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the API reference to the navigation."""
    assert config.nav is not None
    config.nav.append({"API reference": [{package: f"reference/{package}.md"} for package in packages()]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/ and those of the API reference."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(REPOSITORY / source)))
    for package, modules in packages().items():
        text = "\n\n".join([f"# {package}", *(f"::: {name}" for name in modules)]) + "\n"
        files.append(File.generated(config, f"reference/{package}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links between docs/ and the rest of the repository into links of the site."""
    for source, target in OUTSIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{re.escape(source)}(#[^)]*)?\)", rf"]({target}\1)", markdown)
    return re.sub(r"\]\(docs/", "](", markdown)
