"""Inflection: German articles, adjectives and verbs; English plurals and verbs; numbers in both languages."""

from dataclasses import dataclass

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
ME, YOU, HE, WE, THEY = range(5)  # "you" is singular and familiar: German "du"

Endings = tuple[tuple[str, str, str, str], ...]
Forms = tuple[str, str, str, str, str]

# One row per case; one column per gender and one for the plural.
DER: Endings = (
    ("der", "die", "das", "die"),
    ("den", "die", "das", "die"),
    ("dem", "der", "dem", "den"),
)
RELATIVE: Endings = (*DER[:2], ("dem", "der", "dem", "denen"))
# Endings of dieser, jeder and welcher, and of adjectives without a preceding ending that marks the case.
STRONG: Endings = (
    ("er", "e", "es", "e"),
    ("en", "e", "es", "e"),
    ("em", "er", "em", "en"),
)
# Endings of ein, kein and mein.
EIN: Endings = (
    ("", "e", "", "e"),
    ("en", "e", "", "e"),
    ("em", "er", "em", "en"),
)
# Endings of adjectives after der and dieser.
WEAK: Endings = (
    ("e", "e", "e", "en"),
    ("en", "e", "e", "en"),
    ("en", "en", "en", "en"),
)
# Endings of adjectives after ein, kein and mein: strong exactly where these have no ending.
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
    """Dative plural of a noun: Kinder becomes Kindern; Frauen and Autos stay."""
    return plural if plural.endswith(("n", "s")) else plural + "n"


def with_preposition(preposition: str, phrase: str) -> str:
    """Put a preposition before a noun phrase, contracted with its article: in + das Haus is ins Haus."""
    article, _, rest = phrase.partition(" ")
    contracted = CONTRACTIONS.get((preposition, article))
    return f"{contracted} {rest}" if contracted else f"{preposition} {phrase}"


@dataclass(frozen=True)
class GermanVerb:
    """Forms of a German verb.

    Attributes:
        prefix: separable prefix, or "".
        present: finite present forms without the prefix.
        auxiliary: perfect auxiliary, the present of haben or sein.
        infinitive: infinitive with the prefix.
        participle: past participle with the prefix.
        zu_infinitive: infinitive with zu and the prefix.
    """

    prefix: str
    present: Forms
    auxiliary: Forms
    infinitive: str
    participle: str
    zu_infinitive: str


def german_verb(infinitive: str, changed: str | None = None, participle: str | None = None) -> GermanVerb:
    """Build the forms of a German verb.

    Args:
        infinitive: infinitive with | after a separable prefix: ein|kaufen.
        changed: irregular stem of du and er: lies for lesen; None: regular.
        participle: irregular participle, with ist_ before it if the perfect takes sein; None: regular.
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
    """Whether the ending t needs a linking e: arbeitet, öffnet, zeichnet; but lernt, wohnt."""
    if stem[-1] in "dt":
        return True
    return stem[-1] in "mn" and (stem[-2] not in VOWELS + "lrhmn" or stem[-3:-1] == "ch")


@dataclass(frozen=True)
class EnglishVerb:
    """Forms of an English verb; only its first word is inflected: pick up, picks up."""

    base: str
    third: str
    past: str
    ing: str


def english_verb(base: str, past: str | None = None, ing: str | None = None) -> EnglishVerb:
    """Build the forms of an English verb; `past` and `ing` are the irregular forms, None: regular."""
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
    """Plural of a noun; the third person singular of a verb has the same ending."""
    if _ends_in_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "o")) else "s")


def a_or_an(following: str) -> str:
    """Indefinite article before a word, by its first sound."""
    return "an" if following[0] in "aeiouAEIOU" and not following.startswith(("uni", "use", "eu")) else "a"


def _ends_in_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in VOWELS


def _doubles(word: str) -> bool:
    """Whether a suffix doubles the last letter: plan, planning; but read, visit, show."""
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
    """English word of a number below 100."""
    tens, ones = divmod(number, 10)
    if tens < 2:
        return ENGLISH_SMALL.split()[number]
    return ENGLISH_TENS.split()[tens] + (f"-{ENGLISH_SMALL.split()[ones]}" if ones else "")


def german_number(number: int) -> str:
    """German word of a number below 100; the ones come first."""
    tens, ones = divmod(number, 10)
    if tens < 2:
        return GERMAN_SMALL.split()[number]
    first = "ein" if ones == 1 else GERMAN_SMALL.split()[ones]
    return (f"{first}und" if ones else "") + GERMAN_TENS.split()[tens]
