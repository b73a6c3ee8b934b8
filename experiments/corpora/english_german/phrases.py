"""Noun phrases and other parts of sentences in English and German."""

from dataclasses import dataclass

from experiments.corpora.english_german.inflection import (
    DATIVE,
    DER,
    EIN,
    HE,
    MASCULINE,
    MIXED,
    NOMINATIVE,
    PLURAL,
    STRONG,
    THEY,
    WEAK,
    Endings,
    a_or_an,
    english_number,
    german_number,
    with_preposition,
)
from experiments.corpora.english_german.lexicon import Adjective, Noun


@dataclass(frozen=True, slots=True, eq=False)
class Phrase:
    """A phrase whose words never change."""

    english: str
    german: str


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """First word of a noun phrase.

    Attributes:
        german: German stem without ending.
        endings: endings of the determiner; None: it is not inflected.
        adjectives: endings of adjectives after it.
        is_negative: whether it is negative: kein in German.
    """

    english: str
    german: str
    endings: Endings | None
    adjectives: Endings
    is_negative: bool = False


def _of_ein(english: str, german: str, is_negative: bool = False) -> Determiner:
    return Determiner(english, german, EIN, MIXED, is_negative)


THE = Determiner("the", "", DER, WEAK)
A = _of_ein("a", "ein")
NONE = Determiner("", "", None, STRONG)
THIS = Determiner("this", "dies", STRONG, WEAK)
THESE = Determiner("these", "dies", STRONG, WEAK)
EVERY = Determiner("every", "jed", STRONG, WEAK)
WHICH = Determiner("which", "welch", STRONG, WEAK)
ALL = Determiner("all", "all", STRONG, WEAK)
MANY = Determiner("many", "viel", STRONG, STRONG)
SOME = Determiner("some", "einig", STRONG, STRONG)
HOW_MANY = Determiner("how many", "wie viel", STRONG, STRONG)
NO = _of_ein("no", "kein", is_negative=True)
NOT_A = _of_ein("a", "kein", is_negative=True)  # English has "not" at the verb
NOT_ANY = _of_ein("any", "kein", is_negative=True)
POSSESSIVES = (
    _of_ein("my", "mein"), _of_ein("your", "dein"), _of_ein("his", "sein"), _of_ein("her", "ihr"),
    _of_ein("our", "unser"), _of_ein("their", "ihr"),
)  # fmt: skip


def possessive_of(name: str) -> Determiner:
    """Possessive of a name: Anna's, Annas.

    It does not mark the case, so adjectives after it have strong endings.
    """
    return Determiner(f"{name}'s", f"{name}s", None, STRONG)


def number_of(number: int) -> Determiner:
    """Determiner of a number from 2 to 99."""
    return Determiner(english_number(number), german_number(number), None, STRONG)


@dataclass(frozen=True, slots=True, eq=False)
class NounPhrase:
    """A noun phrase in all its cases.

    Attributes:
        english: English form as a subject.
        english_object: English form after a verb or a preposition.
        german: German forms by case.
        person: person of the verb: ME, YOU, HE, WE or THEY.
        gender: gender of a pronoun that refers to it, or PLURAL.
    """

    english: str
    english_object: str
    german: tuple[str, str, str]
    person: int
    gender: int
    is_pronoun: bool = False
    is_negative: bool = False


def noun_phrase(
    noun: Noun,
    determiner: Determiner,
    adjectives: tuple[Adjective, ...] = (),
    *,
    is_plural: bool,
    is_very: bool = False,
) -> NounPhrase:
    """Build a noun phrase; `is_very` puts "very" before the first adjective."""
    gender = PLURAL if is_plural else noun.gender
    before = "very " if is_very else ""
    words = before + "".join([f"{adjective.english} " for adjective in adjectives]) + noun.english[is_plural]
    article = a_or_an(words) if determiner.english == "a" else determiner.english
    english = f"{article} {words}" if article else words
    german = []
    for case, form in enumerate(noun.german[is_plural]):
        words = determiner.german + (determiner.endings[case][gender] if determiner.endings else "")
        if words:
            words += " "
        if is_very:
            words += "sehr "
        ending = determiner.adjectives[case][gender] + " "
        for adjective in adjectives:
            words += adjective.stem + ending
        german.append(words + form)
    nominative, accusative, dative = german
    return NounPhrase(
        english=english,
        english_object=english,
        german=(nominative, accusative, dative),
        person=THEY if is_plural else HE,
        gender=gender,
        is_negative=determiner.is_negative,
    )


def profession_phrase(noun: Noun, adjectives: tuple[Adjective, ...] = (), *, is_very: bool = False) -> Phrase:
    """Profession as a predicate: a teacher, Lehrer; German has an article only with an adjective."""
    phrase = noun_phrase(noun, A, adjectives, is_plural=False, is_very=is_very)
    return Phrase(phrase.english, phrase.german[NOMINATIVE] if adjectives else noun.german[0][NOMINATIVE])


def pronoun(english: str, english_object: str, german: str, person: int, gender: int = MASCULINE) -> NounPhrase:
    """Build a pronoun; `german` has its three cases, separated by spaces."""
    nominative, accusative, dative = german.split()
    return NounPhrase(english, english_object, (nominative, accusative, dative), person, gender, is_pronoun=True)


def name_phrase(name: str, gender: int) -> NounPhrase:
    """Build a phrase of a person's name, equal in every case."""
    return NounPhrase(name, name, (name, name, name), HE, gender)


def both(first: NounPhrase, second: NounPhrase) -> NounPhrase:
    """Join two noun phrases by "and"."""
    english = f"{first.english} and {second.english}"
    nominative, accusative, dative = (
        f"{one} und {other}" for one, other in zip(first.german, second.german, strict=True)
    )
    return NounPhrase(english, english, (nominative, accusative, dative), THEY, PLURAL)


def prepositional_phrase(preposition: tuple[str, str], phrase: NounPhrase, case: int) -> Phrase:
    """Build a prepositional phrase from an English and German preposition and a noun phrase in a German case."""
    english, german = preposition
    return Phrase(f"{english} {phrase.english_object}", with_preposition(german, phrase.german[case]))


def clock_times() -> tuple[Phrase, ...]:
    """Full, half and quarter hours.

    German names half hours by the next hour: half past three is halb vier.
    """
    times = []
    for hour in range(1, 13):
        english, german = english_number(hour), german_number(hour)
        following = hour % 12 + 1
        times += [
            Phrase(f"at {english} o'clock", f"um {'ein' if hour == 1 else german} Uhr"),
            Phrase(f"at half past {english}", f"um halb {german_number(following)}"),
            Phrase(f"at quarter past {english}", f"um Viertel nach {german}"),
            Phrase(f"at quarter to {english}", f"um Viertel vor {german}"),
        ]
    return tuple(times)


_UNITS = (("days", "Tagen"), ("weeks", "Wochen"), ("months", "Monaten"), ("years", "Jahren"))
_WEEKDAYS = (
    ("Monday", "Montag"), ("Tuesday", "Dienstag"), ("Wednesday", "Mittwoch"), ("Thursday", "Donnerstag"),
    ("Friday", "Freitag"), ("Saturday", "Samstag"), ("Sunday", "Sonntag"),
)  # fmt: skip
_MONTHS = (
    ("January", "Januar"), ("February", "Februar"), ("March", "März"), ("April", "April"), ("May", "Mai"),
    ("June", "Juni"), ("July", "Juli"), ("August", "August"), ("September", "September"), ("October", "Oktober"),
    ("November", "November"), ("December", "Dezember"),
)  # fmt: skip
_SEASONS = (("spring", "Frühling"), ("summer", "Sommer"), ("autumn", "Herbst"), ("winter", "Winter"))


def _phrases(table: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*(side.strip() for side in line.split("=", 1))) for line in table.strip().splitlines())


def _any_tense() -> tuple[Phrase, ...]:
    return (
        *_phrases("""
            in the morning = am Morgen
            in the afternoon = am Nachmittag
            in the evening = am Abend
            at the weekend = am Wochenende
            after dinner = nach dem Abendessen
            before breakfast = vor dem Frühstück
            after school = nach der Schule
            after work = nach der Arbeit
        """),
        *(Phrase(f"in {english}", f"im {german}") for english, german in _MONTHS + _SEASONS),
        *clock_times(),
    )


def present_times() -> tuple[Phrase, ...]:
    """Times of repeated actions."""
    return (
        *_phrases("""
            every day = jeden Tag
            every morning = jeden Morgen
            every evening = jeden Abend
            every week = jede Woche
            every year = jedes Jahr
        """),
        *(Phrase(f"on {english}s", f"{german.lower()}s") for english, german in _WEEKDAYS),
        *(Phrase(f"every {english}", f"jeden {german}") for english, german in _WEEKDAYS),
        *_any_tense(),
    )


def past_times() -> tuple[Phrase, ...]:
    """Times of past actions."""
    return (
        *_phrases("""
            today = heute
            yesterday = gestern
            yesterday morning = gestern Morgen
            yesterday evening = gestern Abend
            this morning = heute Morgen
            last week = letzte Woche
            last month = letzten Monat
            last year = letztes Jahr
        """),
        *(Phrase(f"on {english}", f"am {german}") for english, german in _WEEKDAYS),
        *(Phrase(f"last {english}", f"letzten {german}") for english, german in _WEEKDAYS),
        *(
            Phrase(f"{english_number(number)} {english} ago", f"vor {german_number(number)} {german}")
            for number in range(2, 21)
            for english, german in _UNITS
        ),
        *_any_tense(),
    )


def future_times() -> tuple[Phrase, ...]:
    """Times of future actions."""
    return (
        *_phrases("""
            today = heute
            tomorrow = morgen
            tomorrow evening = morgen Abend
            this evening = heute Abend
            next week = nächste Woche
            next month = nächsten Monat
            next year = nächstes Jahr
        """),
        *(Phrase(f"on {english}", f"am {german}") for english, german in _WEEKDAYS),
        *(Phrase(f"next {english}", f"nächsten {german}") for english, german in _WEEKDAYS),
        *(
            Phrase(f"in {english_number(number)} {english}", f"in {german_number(number)} {german}")
            for number in range(2, 21)
            for english, german in _UNITS
        ),
        *_any_tense(),
    )


FREQUENCIES = (
    Phrase("always", "immer"), Phrase("often", "oft"), Phrase("sometimes", "manchmal"), Phrase("rarely", "selten"),
    Phrase("usually", "meistens"), Phrase("never", "nie"),
)  # fmt: skip
MANNERS = (
    Phrase("quietly", "leise"), Phrase("slowly", "langsam"), Phrase("quickly", "schnell"),
    Phrase("carefully", "vorsichtig"),
)  # fmt: skip
MEANS = tuple(
    Phrase(f"by {english}", f"mit {german}")
    for english, german in (
        ("train", "dem Zug"), ("bus", "dem Bus"), ("car", "dem Auto"), ("ship", "dem Schiff"),
        ("bicycle", "dem Fahrrad"), ("taxi", "dem Taxi"),
    )
)  # fmt: skip


def companion(phrase: NounPhrase) -> Phrase:
    """Phrase "with ..." for a companion."""
    return prepositional_phrase(("with", "mit"), phrase, DATIVE)
