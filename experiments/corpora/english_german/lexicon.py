"""Lexicon: the words of `words.py` with all forms, indexed by class and compatibility."""

from dataclasses import dataclass
from itertools import chain

from experiments.corpora.english_german import words
from experiments.corpora.english_german.inflection import (
    ACCUSATIVE,
    DATIVE,
    FEMININE,
    MASCULINE,
    NEUTER,
    EnglishVerb,
    GermanVerb,
    dative_plural,
    english_plural,
    english_verb,
    german_verb,
)

GENDERS = {"m": MASCULINE, "f": FEMININE, "n": NEUTER}


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective in both languages.

    Attributes:
        german: uninflected form, used as a predicate.
        stem: German stem that takes endings before a noun.
        comparative: English and German comparative; None if not gradable.
    """

    english: str
    german: str
    stem: str
    comparative: tuple[str, str] | None


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun with its forms by number and the adjectives that suit it.

    Attributes:
        english: singular and plural.
        german: singular and plural, each by case.
        is_mass: whether it is a mass noun, which has no plural and can occur without an article.
    """

    english: tuple[str, str]
    german: tuple[tuple[str, str, str], tuple[str, str, str]]
    gender: int
    is_mass: bool
    classes: frozenset[str]
    adjectives: tuple[Adjective, ...]
    colours: tuple[Adjective, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """A place with its English and German prepositions, for location (`where`) and direction (`whereto`)."""

    noun: Noun
    where: tuple[str, str]
    whereto: tuple[str, str]
    tags: frozenset[str]


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb with the objects and places that suit it.

    Attributes:
        objects: nouns that can be its object.
        places: tags of places for it.
        remarks: restrictions such as "animals", "singular", "plural", "stative" and "placed", or kinds of clauses that
            follow it.
        preposition: English and German preposition before the object, if any.
        case: German case of the object after the preposition.
    """

    english: EnglishVerb
    german: GermanVerb
    objects: tuple[Noun, ...]
    places: tuple[str, ...]
    remarks: frozenset[str]
    preposition: tuple[str, str] | None = None
    case: int = ACCUSATIVE


@dataclass(frozen=True, eq=False)
class Spot:
    """A thing that locates others: English prepositions of location and direction, and the German preposition."""

    noun: Noun
    where: str
    whereto: str
    german: str


class Lexicon:
    """All words. Construction takes some milliseconds."""

    def __init__(self) -> None:
        groups = {name: classes.split(",") for name, classes in _rows(words.GROUPS)}

        def expanded(classes: str) -> list[str]:
            names = [] if classes == "-" else classes.split(",")
            return list(chain.from_iterable(groups.get(name, [name]) for name in names))

        self._expanded = expanded
        self.adjectives = [_adjective(row) for row in _rows(words.ADJECTIVES)]
        self.colours = [_adjective(row) for row in _rows(words.COLOURS)]
        self._fits = [expanded(row[4]) for row in _rows(words.ADJECTIVES)]
        self._colours_fit = [expanded(row[4]) for row in _rows(words.COLOURS)]
        self.nouns = [self._noun(row) for row in _rows(words.NOUNS)]
        self.places = []
        for *forms, where, whereto, tags, classes in _rows(words.PLACES):
            noun = self._noun([*forms, classes])
            self.places.append(Place(noun, _pair(where), _pair(whereto), frozenset(tags.split(","))))
            if noun.english[0] not in {known.english[0] for known in self.nouns}:
                self.nouns.append(noun)
        self.transitive = self._verbs(words.TRANSITIVE)
        self.dative = self._verbs(words.DATIVE)
        self.giving = self._verbs(words.GIVING)
        self.prepositional = self._verbs(words.PREPOSITIONAL)
        self.intransitive = [self._verb([*row[:4], "-", *row[4:]]) for row in _rows(words.INTRANSITIVE)]
        self.motion = [self._verb([*row[:4], "-", *row[4:]]) for row in _rows(words.MOTION)]
        self.matrix = [self._verb([*row[:4], "-", "-", *row[4:]]) for row in _rows(words.MATRIX)]
        others = [self._verb([*row, "-", "-", "-"]) for row in _rows(words.OTHER_VERBS)]
        self.other_verbs = {verb.english.base: verb for verb in others}
        by_name = {noun.english[0]: noun for noun in self.nouns}
        self.spots = [
            Spot(by_name[name], *(part.replace("_", " ") for part in spot.split(":")))
            for name, *spots in _rows(words.SPOTS)
            for spot in spots
        ]
        self.women = words.WOMEN.split()
        self.men = words.MEN.split()
        self.cities = [_pair(pair) for pair in words.CITIES.split()]
        self.countries = [_pair(pair) for pair in words.COUNTRIES.split()]
        with_umlaut = dict(_pair(pair) for pair in words.UMLAUT_OF_WOMEN.split())
        self._women_of = {}
        for noun in self.nouns_of("profession"):
            man = noun.german[0][0]
            woman = with_umlaut.get(man, man + "in")
            names = "/".join(noun.english)
            self._women_of[noun.english[0]] = self._noun([names, "f", woman, woman + "nen", ",".join(noun.classes)])

    def nouns_of(self, *classes: str) -> tuple[Noun, ...]:
        """Nouns of any of the classes."""
        return tuple(noun for noun in self.nouns if not noun.classes.isdisjoint(classes))

    def places_of(self, *tags: str) -> tuple[Place, ...]:
        """Places with any of the tags."""
        return tuple(place for place in self.places if not place.tags.isdisjoint(tags))

    def woman_of(self, profession: Noun) -> Noun:
        """Noun for a woman of a profession, a separate word in German."""
        return self._women_of[profession.english[0]]

    def _noun(self, row: list[str]) -> Noun:
        english, gender, german, plural, classes = row
        singular, _, irregular = english.replace("_", " ").partition("/")
        kinds = frozenset(self._expanded(classes))
        others = plural if gender.endswith("*") else german
        return Noun(
            english=(singular, irregular or english_plural(singular)),
            german=((german, others, others), (plural, plural, dative_plural(plural))),
            gender=GENDERS[gender[0]],
            is_mass=plural == "-",
            classes=kinds,
            adjectives=_fitting(self.adjectives, self._fits, kinds),
            colours=_fitting(self.colours, self._colours_fit, kinds),
        )

    def _verbs(self, table: str) -> list[Verb]:
        return [self._verb(row) for row in _rows(table)]

    def _verb(self, row: list[str]) -> Verb:
        english, german, changed, participle, objects, places, remarks = row
        base, past, ing, *_ = [*english.replace("_", " ").split("/"), None, None]
        preposition, case = None, ACCUSATIVE
        first, _, rest = remarks.partition(",")
        if ":" in first:
            before, behind, number = first.split(":")
            preposition, case, remarks = (before, behind), {"3": DATIVE, "4": ACCUSATIVE}[number], rest
        return Verb(
            english=english_verb(str(base), past, ing),
            german=german_verb(german, _given(changed), _given(participle)),
            objects=self.nouns_of(*self._expanded(objects)),
            places=tuple(self._expanded(places)),
            remarks=frozenset(remarks.split(",")),
            preposition=preposition,
            case=case,
        )


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def _pair(text: str) -> tuple[str, str]:
    english, _, german = text.partition(":")
    return english, german


def _given(column: str) -> str | None:
    return None if column == "-" else column


def _adjective(row: list[str]) -> Adjective:
    english, german, more, comparative, _ = row
    german, _, stem = german.partition("/")
    stem = stem or german.removesuffix("e")  # müde: ein müder Mann
    if more == "-":
        return Adjective(english, german, stem, None)
    of_english = f"more {english}" if more == "more" else more
    of_german = german.removesuffix("e") + "er" if comparative == "-" else comparative
    return Adjective(english, german, stem, (of_english, of_german))


def _fitting(adjectives: list[Adjective], fits: list[list[str]], classes: frozenset[str]) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective, fit in zip(adjectives, fits, strict=True) if not classes.isdisjoint(fit))
