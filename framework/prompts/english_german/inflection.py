"""Endings and word forms: German articles, adjectives and verbs, English plurals and verbs, numbers in both."""

from dataclasses import dataclass

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
ME, YOU, HE, WE, THEY = range(5)  # "you" is one person one knows well: German "du"

Endings = tuple[tuple[str, str, str, str], ...]
Forms = tuple[str, str, str, str, str]

# One row per case, one column per gender and one for the plural of all three.
DER: Endings = (
    ("der", "die", "das", "die"),
    ("den", "die", "das", "die"),
    ("dem", "der", "dem", "den"),
)
RELATIVE: Endings = (*DER[:2], ("dem", "der", "dem", "denen"))
# Of dieser, jeder, welcher, and of adjectives where no ending before them has said the case.
STRONG: Endings = (
    ("er", "e", "es", "e"),
    ("en", "e", "es", "e"),
    ("em", "er", "em", "en"),
)
# Of ein, kein, mein.
EIN: Endings = (
    ("", "e", "", "e"),
    ("en", "e", "", "e"),
    ("em", "er", "em", "en"),
)
# Of adjectives behind der and dieser.
WEAK: Endings = (
    ("e", "e", "e", "en"),
    ("en", "e", "e", "en"),
    ("en", "en", "en", "en"),
)
# Of adjectives behind ein, kein and mein: strong exactly where these have no ending of their own.
MIXED: Endings = (
    ("er", "e", "es", "en"),
    ("en", "e", "es", "en"),
    ("en", "en", "en", "en"),
)

CONTRACTIONS = {
    ("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am", ("an", "das"): "ans",
    ("zu", "dem"): "zum", ("zu", "der"): "zur", ("bei", "dem"): "beim", ("von", "dem"): "vom",
}  # fmt: skip

HABEN: Forms = ("habe", "hast", "hat", "haben", "haben")
SEIN: Forms = ("bin", "bist", "ist", "sind", "sind")
IRREGULAR_PRESENT: dict[str, Forms] = {
    "haben": HABEN,
    "sein": SEIN,
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wissen"),
}
WITHOUT_GE = ("be", "er", "ver", "zer", "ent")
VOWELS = "aeiouäöü"


def dative_plural(plural: str) -> str:
    """Kinder: den Kindern; but den Frauen, den Autos."""
    return plural if plural.endswith(("n", "s")) else plural + "n"


def with_preposition(preposition: str, phrase: str) -> str:
    """Put a preposition before a noun phrase: in + das Haus is ins Haus."""
    article, _, rest = phrase.partition(" ")
    contracted = CONTRACTIONS.get((preposition, article))
    return f"{contracted} {rest}" if contracted else f"{preposition} {phrase}"


@dataclass(frozen=True)
class GermanVerb:
    """The forms of a verb that sentences need.

    Attributes:
        prefix: what is split off in a main clause, or "".
        present: the finite forms, without the prefix.
        auxiliary: the forms of haben or sein, which make the perfect with `participle`.
        infinitive, participle, zu_infinitive: with the prefix.
    """

    prefix: str
    present: Forms
    auxiliary: Forms
    infinitive: str
    participle: str
    zu_infinitive: str


def german_verb(infinitive: str, changed: str | None = None, participle: str | None = None) -> GermanVerb:
    """The forms of a verb.

    Args:
        infinitive: with | behind a prefix that is split off: ein|kaufen.
        changed: the stem of du and er where it differs: lies for lesen.
        participle: where it is not the regular one; ist_ before it says that the perfect is made with sein.
    """
    prefix, simple = infinitive.split("|") if "|" in infinitive else ("", infinitive)
    is_short = simple.endswith(("eln", "ern"))
    stem = simple[:-1] if is_short else simple[:-2]
    link = "e" if _needs_e(stem) else ""
    present = IRREGULAR_PRESENT.get(simple) or (
        (stem[:-2] + "l" if simple.endswith("eln") else stem) + "e",
        _second(changed) if changed else _second(stem + link),
        (changed if changed.endswith("t") else changed + "t") if changed else stem + link + "t",
        simple,
        simple,
    )
    has_sein = participle is not None and participle.startswith("ist_")
    if participle is None:
        ge = "" if simple.startswith(WITHOUT_GE) or simple.endswith("ieren") else "ge"
        participle = prefix + ge + stem + link + "t"
    return GermanVerb(
        prefix=prefix,
        present=present,
        auxiliary=SEIN if has_sein else HABEN,
        infinitive=prefix + simple,
        participle=participle.removeprefix("ist_"),
        zu_infinitive=f"{prefix}zu{simple}" if prefix else f"zu {simple}",
    )


def _second(stem: str) -> str:
    return stem + ("t" if stem[-1] in "sßxz" else "st")


def _needs_e(stem: str) -> bool:
    """Whether t cannot be spoken behind the stem: arbeitet, öffnet, zeichnet; but lernt, wohnt."""
    if stem[-1] in "dt":
        return True
    return stem[-1] in "mn" and (stem[-2] not in VOWELS + "lrhmn" or stem[-3:-1] == "ch")


@dataclass(frozen=True)
class EnglishVerb:
    """The forms of a verb; what follows its first word never changes: pick up, picks up."""

    base: str
    third: str
    past: str
    ing: str


def english_verb(base: str, past: str | None = None, ing: str | None = None) -> EnglishVerb:
    """The forms of a verb; `past` and `ing` where they are not the regular ones."""
    first, _, rest = base.partition(" ")
    rest = f" {rest}" if rest else ""
    third = "has" if first == "have" else english_plural(first)
    doubled = first + first[-1] if _doubles(first) else first
    if past is None:
        past = (first[:-1] + "ied" if _ends_in_y(first) else doubled.removesuffix("e") + "ed") + rest
    if ing is None:
        ing = (doubled[:-1] if doubled.endswith("e") and not doubled.endswith("ee") else doubled) + "ing" + rest
    return EnglishVerb(base=base, third=third + rest, past=past, ing=ing)


def english_plural(word: str) -> str:
    """Of a noun; verbs form he, she and it alike."""
    if _ends_in_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")


def a_or_an(following: str) -> str:
    """The article before a word, by its first sound."""
    return "an" if following[0] in "aeiouAEIOU" and not following.startswith(("uni", "use", "eu")) else "a"


def _ends_in_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in VOWELS


def _doubles(word: str) -> bool:
    """Whether the last letter is doubled before a vowel: plan, planning; but read, visit, show."""
    vowels = [letter in VOWELS for letter in word]
    return len(word) > 2 and vowels[-3:] == [False, True, False] and sum(vowels) == 1 and word[-1] not in "wxy"


ENGLISH_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
ENGLISH_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety"
GERMAN_SMALL = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
GERMAN_TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"


def english_number(number: int) -> str:
    """A number below 100 as a word."""
    tens, ones = divmod(number, 10)
    if tens < 2:
        return ENGLISH_SMALL.split()[number]
    return ENGLISH_TENS.split()[tens] + (f"-{ENGLISH_SMALL.split()[ones]}" if ones else "")


def german_number(number: int) -> str:
    """A number below 100 as a word; the ones come first."""
    tens, ones = divmod(number, 10)
    if tens < 2:
        return GERMAN_SMALL.split()[number]
    first = "ein" if ones == 1 else GERMAN_SMALL.split()[ones]
    return (f"{first}und" if ones else "") + GERMAN_TENS.split()[tens]
