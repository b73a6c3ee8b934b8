"""Handwritten digits as texts: images are tokens, too (scikit-learn's digits; Alpaydin and Kaynak, 1998)."""

import importlib
from collections.abc import Iterator

from framework.prompts.prompt_source import Text, key
from framework.whole_numbers import check_whole

SIDE = 8  # pixels
LEVELS = "abcdefghijklmnopq"  # of grey: a is paper, q is ink
SPLITS = ("held_out", "train")
HELD_OUT_SHARE = 7  # one image in so many


class Digits:
    """Which digit it is, 0 to 9, and behind it the first rows of an image of it, a letter for each pixel.

    There are 1797 images of 8 x 8 pixels and 17 levels of grey, by 43 hands.
    """

    def __init__(self, *, split: str, rows: int):
        """
        Args:
            split: "held_out" or "train"; no image is in both.
            rows: of every image, 0 to 8: how much of it is given.

        Raises:
            ImportError: scikit-learn is not installed.
            ValueError: an unknown split, or rows that an image does not have.
        """
        if split not in SPLITS:
            raise ValueError(f"{key('split')} is {split!r}; allowed: {', '.join(SPLITS)}")
        check_whole(key("rows"), rows, least=0, most=SIDE)
        try:
            self._datasets = importlib.import_module("sklearn.datasets")
        except ImportError as error:
            raise ImportError(
                "prompts of digits need scikit-learn; pip install -e '.[images]', or choose others (prompts=)"
            ) from error
        self.split, self.rows = split, rows

    def texts(self) -> Iterator[Text]:
        """Yield the images of the split; the category is the digit."""
        data = self._datasets.load_digits()
        images = zip(data.data.astype(int).tolist(), data.target.tolist(), strict=True)
        for number, (pixels, digit) in enumerate(images):
            if (number % HELD_OUT_SHARE == 0) == (self.split == "held_out"):
                image = "".join(LEVELS[level] for level in pixels[: self.rows * SIDE])
                yield Text(f"digits:{number}", str(digit), f"{digit}{image}")


def levels_of(text: str) -> list[int] | None:
    """The levels of an image's 64 pixels, row by row; None if the text is not a digit and so many pixels."""
    digit, pixels = text[:1], text[1:]
    if not digit.isdecimal() or len(pixels) != SIDE * SIDE or set(pixels) - set(LEVELS):
        return None
    return [LEVELS.index(pixel) for pixel in pixels]
