"""Random noun phrases, places and clauses that make sense: people read books, not chairs."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from experiments.corpora.english_german.clauses import (
    CAN,
    COULD,
    FUTURE,
    HAD_TO,
    HAS_TO,
    IS_NOW,
    MAY,
    MUST,
    PAST,
    PRESENT,
    PROGRESSIVE,
    SHOULD,
    WANTED,
    WANTS,
    WAS_THEN,
    Clause,
    Tense,
)
from experiments.corpora.english_german.inflection import (
    ACCUSATIVE,
    DATIVE,
    FEMININE,
    HE,
    MASCULINE,
    ME,
    NEUTER,
    PLURAL,
    THEY,
    WE,
    YOU,
)
from experiments.corpora.english_german.lexicon import Adjective, Lexicon, Noun, Place, Verb
from experiments.corpora.english_german.phrases import (
    ALL,
    EVERY,
    FREQUENCIES,
    MANNERS,
    MANY,
    MEANS,
    NO,
    NONE,
    NOT_A,
    NOT_ANY,
    POSSESSIVES,
    SOME,
    THE,
    THESE,
    THIS,
    A,
    Determiner,
    NounPhrase,
    Phrase,
    both,
    companion,
    future_times,
    name_phrase,
    noun_phrase,
    number_of,
    past_times,
    possessive_of,
    prepositional_phrase,
    present_times,
    pronoun,
)

T = TypeVar("T")


PRONOUNS = (
    pronoun("I", "me", "ich mich mir", ME),
    pronoun("you", "you", "du dich dir", YOU),
    pronoun("he", "him", "er ihn ihm", HE, MASCULINE),
    pronoun("she", "her", "sie sie ihr", HE, FEMININE),
    pronoun("we", "us", "wir uns uns", WE),
    pronoun("they", "them", "sie sie ihnen", THEY, PLURAL),
)
OTHERS = tuple(phrase for phrase in PRONOUNS if phrase.person in (HE, THEY))
SHE = PRONOUNS[3]
IT = pronoun("it", "it", "es es ihm", HE, NEUTER)
WHO = pronoun("who", "whom", "wer wen wem", HE)

# Choices are uniform; frequent determiners are repeated.
SINGULAR_SUBJECTS = (THE,) * 12 + POSSESSIVES + (A,) * 3 + (THIS,) * 3 + (EVERY, EVERY, NO)
PLURAL_SUBJECTS = (THE,) * 7 + POSSESSIVES + (THESE,) * 3 + (MANY, MANY, SOME, SOME, ALL, NO)
SINGULAR_OBJECTS = (THE,) * 7 + POSSESSIVES + (A,) * 9 + (THIS,) * 3 + (EVERY,)
PLURAL_OBJECTS = (THE,) * 4 + POSSESSIVES + (NONE,) * 6 + (THESE,) * 2 + (MANY, MANY, SOME, SOME, ALL)
MASS_OBJECTS = (THE,) * 4 + POSSESSIVES + (NONE,) * 12 + (THIS,)
# The scope of a negation with every or many is ambiguous, so negated clauses have definite subjects.
SINGULAR_NEGATED_SUBJECTS = (THE,) * 6 + POSSESSIVES + (THIS,) * 2
PLURAL_NEGATED_SUBJECTS = (THE,) * 6 + POSSESSIVES + (THESE,) * 2
SINGULAR_NEGATED_OBJECTS = (THE,) * 5 + POSSESSIVES + (NOT_A,) * 7 + (THIS,)
PLURAL_NEGATED_OBJECTS = (THE,) * 4 + POSSESSIVES + (NOT_ANY,) * 9 + (THESE,)
MASS_NEGATED_OBJECTS = (THE,) * 4 + POSSESSIVES + (NOT_ANY,) * 9
PLACE_DETERMINERS = (THE,) * 12 + (THIS, A) + POSSESSIVES[:2]
PUBLIC_PLACE_DETERMINERS = (THE,) * 12 + (THIS, A)

NOW: tuple[Tense, ...] = (PRESENT,) * 6 + (PROGRESSIVE,) * 2 + (CAN, MUST, WANTS, HAS_TO)
THEN: tuple[Tense, ...] = (PAST,) * 8 + (COULD, WANTED, HAD_TO)
LATER: tuple[Tense, ...] = (FUTURE,) * 3 + (SHOULD, MAY)
ANY_TENSE = NOW + THEN + LATER
PAST_TENSES = frozenset((*THEN, WAS_THEN))

WEATHER = (
    ("cold", "kalt"), ("warm", "warm"), ("hot", "heiß"), ("dark", "dunkel"), ("sunny", "sonnig"), ("windy", "windig"),
    ("foggy", "neblig"),
)  # fmt: skip


def pick(random: Random, items: tuple[T, ...] | list[T]) -> T:
    """Draw one item uniformly; unlike `Random.choice`, with equal results in every Python version."""
    return items[int(random.random() * len(items))]


class ClauseDrawing:
    """Draws noun phrases, places and clauses from the lexicon."""

    def __init__(self) -> None:
        self.lexicon = Lexicon()
        words = self.lexicon
        self._persons = words.nouns_of("person")
        self._kin = words.nouns_of("kin")
        self._animals = words.nouns_of("animal")
        self._names = [name_phrase(name, FEMININE) for name in words.women]
        self._names += [name_phrase(name, MASCULINE) for name in words.men]
        self._of_names = [possessive_of(phrase.english) for phrase in self._names]
        self._small_numbers = [number_of(number) for number in range(2, 13)]
        self._numbers = [number_of(number) for number in range(2, 100)]
        self._times = {PRESENT: present_times(), PAST: past_times(), FUTURE: future_times()}
        verbs = [*words.transitive, *words.intransitive, *words.motion, *words.prepositional, *words.dative]
        self._where = {verb.places: self._places(verb.places, whereto=False) for verb in verbs}
        self._whereto = {verb.places: self._places(verb.places, whereto=True) for verb in verbs}
        self._located = [verb for verb in words.intransitive if verb.places]
        self._kinds: list[Callable[[Random, Tense, bool, NounPhrase | None], Clause]] = [
            *[self._transitive] * 42, *[self._intransitive] * 20, *[self._motion] * 14, *[self._giving] * 8,
            *[self._helping] * 6, *[self._prepositional] * 10,
        ]  # fmt: skip

    # Noun phrases

    def _count_phrases(self, noun: Noun, *, is_object: bool, plural: bool | None) -> int:
        """Number of phrases that `_phrase` makes from a noun with at most one adjective and no number above twelve."""
        numbers = (False,) if noun.is_mass else (False, True) if plural is None else (plural,)
        determiners = 0
        for is_plural in numbers:
            choices = determiners_of(noun, is_plural=is_plural, is_object=is_object, is_negated=False)
            determiners += len({choice.english for choice in choices}) + is_plural * len(self._small_numbers)
        return determiners * (1 + len(noun.adjectives))

    def _phrase(
        self,
        random: Random,
        nouns: tuple[Noun, ...] | list[Noun],
        *,
        is_object: bool = False,
        is_negated: bool = False,
        plural: bool | None = None,
        determiner: Determiner | None = None,
        is_bare: bool = False,
    ) -> NounPhrase:
        """Draw a noun with a determiner and, unless `is_bare`, possibly adjectives."""
        noun = pick(random, nouns)
        is_plural = not noun.is_mass and (random.random() < 0.35 if plural is None else plural)
        if determiner is None:
            if is_plural and not is_negated and random.random() < 0.2:
                determiner = pick(random, self._small_numbers if random.random() < 0.7 else self._numbers)
            else:
                choices = determiners_of(noun, is_plural=is_plural, is_object=is_object, is_negated=is_negated)
                determiner = pick(random, choices)
                if determiner in POSSESSIVES and random.random() < 0.15:
                    determiner = pick(random, self._of_names)
        adjectives, is_very = ((), False) if is_bare else self._adjectives(random, noun)
        return noun_phrase(noun, determiner, adjectives, is_plural=is_plural, is_very=is_very)

    def _adjectives(self, random: Random, noun: Noun) -> tuple[tuple[Adjective, ...], bool]:
        chance = random.random()
        if chance < 0.28 and noun.adjectives:
            adjective = pick(random, noun.adjectives)
            return (adjective,), chance < 0.03 and adjective.comparative is not None
        if chance < 0.34 and noun.colours:
            return (pick(random, noun.colours),), False
        if chance < 0.36 and noun.colours and noun.adjectives:
            return (pick(random, noun.adjectives), pick(random, noun.colours)), False
        return (), False

    def _subject(self, random: Random, verb: Verb | None = None, *, is_negated: bool = False) -> NounPhrase:
        """Draw a subject: a person, or an animal if the verb allows it."""
        chance = random.random()
        if chance < 0.15:
            return pick(random, PRONOUNS)
        if chance < 0.25:
            return pick(random, self._names)
        if chance < 0.30:
            first = self._phrase(random, self._persons, plural=False, determiner=THE)
            second = self._phrase(random, self._kin, plural=False, determiner=pick(random, POSSESSIVES))
            return both(first, second)
        if chance < 0.32:
            first, second = pick(random, self._names), pick(random, self._names)
            return first if first is second else both(first, second)
        if chance < 0.5 and verb is not None and "animals" in verb.remarks:
            return self._phrase(random, self._animals, is_negated=is_negated)
        return self._phrase(random, self._persons, is_negated=is_negated)

    def _object(self, random: Random, verb: Verb, subject: NounPhrase, *, is_negated: bool = False) -> NounPhrase:
        noun = pick(random, verb.objects)
        if "person" in noun.classes and random.random() < 0.3:
            if random.random() < 0.3:
                name = pick(random, self._names)
                if name is not subject:
                    return name
            # English puts pronouns inside phrasal verbs such as "pick up"; reflexive objects are avoided.
            elif " " not in verb.english.base or verb.preposition:
                return pick(random, PRONOUNS if subject.person in (HE, THEY) else OTHERS)
        return self._phrase(random, (noun,), is_object=True, is_negated=is_negated, plural=only_number(verb))

    # Places

    def _places(self, tags: tuple[str, ...], *, whereto: bool) -> tuple[Place | Phrase, ...]:
        """Places with any of the tags; places with a fixed wording are phrases."""
        places: list[Place | Phrase] = list(self.lexicon.places_of(*tags))
        if "home" in tags and not whereto:
            places += [Phrase("at home", "zu Hause")] * 2
        if "homewards" in tags or ("home" in tags and whereto):
            places += [Phrase("home", "nach Hause")] * 3
        names = self.lexicon.cities if "cities" in tags else []
        names = names + (self.lexicon.countries if "countries" in tags else [])
        english, german = ("to", "nach") if whereto else ("in", "in")
        return tuple(places) + tuple(Phrase(f"{english} {name}", f"{german} {own}") for name, own in names)

    def _place_phrase(self, random: Random, place: Place | Phrase, *, whereto: bool) -> Phrase:
        if isinstance(place, Phrase):
            return place
        own = not place.tags.isdisjoint(("home", "lived_in", "work"))
        determiner = pick(random, PLACE_DETERMINERS if own else PUBLIC_PLACE_DETERMINERS)
        phrase = self._phrase(random, (place.noun,), plural=False, determiner=determiner)
        preposition = place.whereto if whereto else place.where
        return prepositional_phrase(preposition, phrase, ACCUSATIVE if whereto and preposition[1] != "zu" else DATIVE)

    def _location(self, random: Random, verb: Verb) -> Phrase:
        return self._place_phrase(random, pick(random, self._where[verb.places]), whereto=False)

    def _direction(self, random: Random, verb: Verb) -> Phrase:
        return self._place_phrase(random, pick(random, self._whereto[verb.places]), whereto=True)

    def _with_someone(self, random: Random) -> Phrase:
        if random.random() < 0.3:
            return companion(pick(random, self._names))
        return companion(
            self._phrase(random, self._persons, plural=random.random() < 0.3, determiner=pick(random, POSSESSIVES))
        )

    # Clauses

    def _clause(
        self,
        random: Random,
        tenses: tuple[Tense, ...],
        *,
        subject: NounPhrase | None = None,
        can_be_negated: bool = True,
        has_time: bool = False,
    ) -> Clause:
        """Draw a clause with an action or state; `has_time` allows a time or frequency."""
        tense = pick(random, tenses)
        is_negated = can_be_negated and random.random() < 0.15
        clause = pick(random, self._kinds)(random, tense, is_negated, subject)
        if has_time:
            self._add_time(random, clause)
        return made_clear(clause)

    def _action(self, random: Random, tenses: tuple[Tense, ...], subject: NounPhrase | None = None) -> Clause:
        """Draw an affirmative clause with a non-stative verb."""
        clause = self._clause(random, tenses, subject=subject, can_be_negated=False)
        while "stative" in clause.verb.remarks:
            clause = self._clause(random, tenses, subject=subject, can_be_negated=False)
        return affirmed(clause)

    def _add_time(self, random: Random, clause: Clause) -> None:
        tense, chance = clause.tense, random.random()
        if "stative" in clause.verb.remarks or tense is PROGRESSIVE:
            return
        if tense is PRESENT and chance < 0.15 and not clause.is_negated and not clause.subject.is_negative:
            clause.frequency = pick(random, FREQUENCIES)
        elif chance < 0.55:
            key = PRESENT if tense is PRESENT else PAST if tense in PAST_TENSES else FUTURE
            clause.time = pick(random, self._times[key])

    def _verb(self, random: Random, verbs: list[Verb], tense: Tense) -> Verb:
        verb = pick(random, verbs)
        while "stative" in verb.remarks and tense is not PRESENT and tense is not PAST:
            verb = pick(random, verbs)
        return verb

    def _transitive(
        self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None, verb: Verb | None = None
    ) -> Clause:
        verb = verb or self._verb(random, self.lexicon.transitive, tense)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        accusative = self._object(random, verb, subject, is_negated=is_negated)
        late: tuple[Phrase, ...] = ()
        # With "nicht" before it, a place would be negated instead of the verb.
        if not is_negated or accusative.is_negative:
            if verb.places and random.random() < 0.4:
                late = (self._location(random, verb),)
            elif "manner" in verb.remarks and not is_negated and random.random() < 0.4:
                # In German too, the adverb of manner follows the object if the object is definite.
                accusative = self._phrase(random, verb.objects, determiner=THE)
                late = (pick(random, MANNERS),)
        return Clause(subject, verb, tense, is_negated, accusative=accusative, late=late)

    def _intransitive(self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None) -> Clause:
        verb = self._verb(random, self.lexicon.intransitive, tense)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        late: tuple[Phrase, ...] = ()
        if "placed" in verb.remarks or (verb.places and random.random() < 0.5):
            late = (self._location(random, verb),)
        elif "manner" in verb.remarks and random.random() < 0.4:
            late = (pick(random, MANNERS[:3]),)
        if "together" in verb.remarks and not is_negated and random.random() < 0.25:
            late = (*late[:1], self._with_someone(random)) if late and late[0] not in MANNERS else late
        return Clause(subject, verb, tense, is_negated, late=late)

    def _motion(self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None) -> Clause:
        verb = self._verb(random, self.lexicon.motion, tense)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        late: tuple[Phrase, ...] = (self._direction(random, verb),)
        chance = random.random()
        if verb.english.base == "travel" and chance < 0.5:
            late += (pick(random, MEANS),)
        elif chance < 0.15 and not is_negated:
            late += (self._with_someone(random),)
        return Clause(subject, verb, tense, is_negated, late=late)

    def _giving(self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None) -> Clause:
        verb = pick(random, self.lexicon.giving)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        if random.random() < 0.25:
            dative = pick(random, PRONOUNS if subject.person in (HE, THEY) else OTHERS)
        else:
            determiner = THE if random.random() < 0.6 else pick(random, POSSESSIVES)
            dative = self._phrase(random, self._persons, determiner=determiner)
        accusative = self._phrase(random, verb.objects, is_object=True, is_negated=is_negated)
        return Clause(subject, verb, tense, is_negated, dative=dative, accusative=accusative)

    def _helping(self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None) -> Clause:
        verb = self._verb(random, self.lexicon.dative, tense)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        return Clause(
            subject, verb, tense, is_negated, dative=self._object(random, verb, subject, is_negated=is_negated)
        )

    def _prepositional(self, random: Random, tense: Tense, is_negated: bool, subject: NounPhrase | None) -> Clause:
        verb = self._verb(random, self.lexicon.prepositional, tense)
        subject = subject or self._subject(random, verb, is_negated=is_negated)
        if is_negated:
            other = self._phrase(random, verb.objects, determiner=THE)
        else:
            other = self._object(random, verb, subject)
        assert verb.preposition is not None
        late: tuple[Phrase, ...] = (prepositional_phrase(verb.preposition, other, verb.case),)
        if verb.places and not is_negated and random.random() < 0.4:
            late += (self._location(random, verb),)
        return Clause(subject, verb, tense, is_negated, late=late)

    def _being(self, random: Random, tense: Tense, subject: NounPhrase | None = None) -> Clause:
        """Draw a clause with `be` and an adjective or a place; `tense` is IS_NOW or WAS_THEN."""
        be = self.lexicon.other_verbs["be"]
        is_negated = random.random() < 0.15
        subject = subject or self._subject(random, is_negated=is_negated)
        if random.random() < 0.3:
            place = pick(random, self._where[self._located[0].places])
            late = self._place_phrase(random, place, whereto=False)
        else:
            late = self._predicate(random, self._kin[0])
        return Clause(subject, be, tense, is_negated, late=(late,))

    def _predicate(self, random: Random, noun: Noun) -> Phrase:
        adjective = pick(random, noun.adjectives)
        chance = random.random()
        if adjective.comparative is not None and chance < 0.3:
            english, german = ("very", "sehr") if chance < 0.18 else ("too", "zu")
            return Phrase(f"{english} {adjective.english}", f"{german} {adjective.german}")
        return Phrase(adjective.english, adjective.german)

    def _weather(self, random: Random, *, is_past: bool) -> Clause:
        if random.random() < 0.5:
            verb = self.lexicon.other_verbs[pick(random, ("rain", "snow"))]
            return Clause(IT, verb, PAST if is_past else PROGRESSIVE)
        late = (Phrase(*pick(random, WEATHER)),)
        return Clause(IT, self.lexicon.other_verbs["be"], WAS_THEN if is_past else IS_NOW, late=late)

    def _any_clause(self, random: Random, *, is_past: bool, subject: NounPhrase | None = None) -> Clause:
        """Draw a clause with an action, a state or the weather."""
        chance = random.random()
        if chance < 0.15 and subject is None:
            return self._weather(random, is_past=is_past)
        if chance < 0.35:
            return self._being(random, WAS_THEN if is_past else IS_NOW, subject)
        return self._clause(random, THEN if is_past else NOW, subject=subject)


def determiners_of(noun: Noun, *, is_plural: bool, is_object: bool, is_negated: bool) -> tuple[Determiner, ...]:
    """Determiners of a noun phrase, repeated by frequency; numbers and names are drawn separately."""
    if noun.is_mass:
        if not is_object:
            return (THE, *POSSESSIVES)
        return MASS_NEGATED_OBJECTS if is_negated else MASS_OBJECTS
    if is_object:
        if is_negated:
            return PLURAL_NEGATED_OBJECTS if is_plural else SINGULAR_NEGATED_OBJECTS
        return PLURAL_OBJECTS if is_plural else SINGULAR_OBJECTS
    if is_negated:
        return PLURAL_NEGATED_SUBJECTS if is_plural else SINGULAR_NEGATED_SUBJECTS
    return PLURAL_SUBJECTS if is_plural else SINGULAR_SUBJECTS


def made_clear(clause: Clause) -> Clause:
    """Replace the past by "could" where English past and present are identical: they read, they put."""
    english = clause.verb.english
    if clause.tense is PAST and english.base == english.past and clause.subject.person != HE:
        clause.tense = COULD
    return clause


def affirmed(clause: Clause) -> Clause:
    """Replace a negative subject by "she", for questions and other clauses that need a real subject."""
    if clause.subject.is_negative:
        clause.subject = SHE
    return clause


def only_number(verb: Verb) -> bool | None:
    """Number of a verb's objects: True for plural only, False for singular only, None for both."""
    return True if "plural" in verb.remarks else False if "singular" in verb.remarks else None
