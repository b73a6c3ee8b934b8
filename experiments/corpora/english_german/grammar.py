"""Sentence patterns in English and German."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import NamedTuple

from experiments.corpora.english_german.clauses import (
    CAN,
    FUTURE,
    IS_NOW,
    LIKES,
    MUST,
    PAST,
    PRESENT,
    PROGRESSIVE,
    SHOULD,
    WANTS,
    WAS_THEN,
    Clause,
    english_predicate,
    english_question,
    english_statement,
    english_who,
    existence,
    german_infinitive,
    german_main,
    german_statement,
    german_subordinate,
    join,
    sentence,
)
from experiments.corpora.english_german.drawing import (
    ANY_TENSE,
    NOW,
    PRONOUNS,
    SHE,
    THEN,
    WHO,
    ClauseDrawing,
    affirmed,
    made_clear,
    only_number,
    pick,
)
from experiments.corpora.english_german.inflection import ACCUSATIVE, DATIVE, FEMININE, MASCULINE, NOMINATIVE, RELATIVE
from experiments.corpora.english_german.lexicon import Adjective, Noun, Verb
from experiments.corpora.english_german.phrases import (
    HOW_MANY,
    MANY,
    NO,
    NONE,
    POSSESSIVES,
    SOME,
    THE,
    THIS,
    WHICH,
    A,
    NounPhrase,
    Phrase,
    noun_phrase,
    prepositional_phrase,
    profession_phrase,
)

Sides = tuple[str, str]


class SentencePair(NamedTuple):
    """An English sentence, its German translation, and their pattern."""

    english: str
    german: str
    pattern: str


# Conjunctions in English and German; a repeated one is twice as frequent.
REASONS = (("because", "weil"), ("because", "weil"), ("although", "obwohl"))
WHENEVER = (("before", "bevor"), ("while", "während"))

THAT, WHETHER, QUESTION, INFINITIVE = "that", "whether", "question", "infinitive"


class Grammar(ClauseDrawing):
    """Random English sentences with German translations. Construction takes some milliseconds.

    The German sentence is a function of the English one: every English word has one translation in each position.
    """

    def __init__(self) -> None:
        super().__init__()
        words = self.lexicon
        self._professions = words.nouns_of("profession")
        self._about_things = [verb for verb in words.transitive if not self._has(verb, "person", "animal")]
        self._about_persons = [verb for verb in words.transitive if all("person" in n.classes for n in verb.objects)]
        self._together = [verb for verb in words.intransitive if "together" in verb.remarks]
        self._whereto_verbs = [verb for verb in words.motion if verb.english.base in ("go", "run", "drive", "travel")]
        self._simple_motion = [verb for verb in words.motion if verb.english.base in ("go", "run", "hurry")]
        self._purposes = [
            verb
            for verb in [*words.transitive, *words.intransitive]
            if verb.places and verb.remarks.isdisjoint(("placed", "stative")) and "stop" not in verb.places
        ]
        self._described = [noun for noun in words.nouns if noun.adjectives]
        self._compared = self._noun_pairs()
        self._towns = words.places_of("settled")
        self._in_towns = words.places_of("town")
        self._rooms = words.places_of("room")
        self._furniture = words.nouns_of("furniture")
        self._outdoors = words.nouns_of("outdoors")
        self._growing = words.places_of("growing")
        self._things = words.nouns_of("thing", "clothes", "vehicle")
        self._flat, self._upright = words.nouns_of("flat"), words.nouns_of("upright")
        self._patterns: list[tuple[str, Callable[[Random], Sides]]] = []
        for name, make, weight in (
            ("statement", self._statement, 30),
            ("place first", self._place_first, 3),
            ("description", self._description, 6),
            ("comparison", self._comparison, 4),
            ("profession", self._profession, 2),
            ("possession", self._belonging, 2),
            ("origin", self._origin, 1),
            ("existence", self._existence, 3),
            ("position", self._position, 3),
            ("placement", self._placement, 4),
            ("liking", self._liking, 3),
            ("weather", self._weather_statement, 2),
            ("yes-no question", self._yes_no_question, 7),
            ("question word", self._question, 8),
            ("reason", self._reason, 7),
            ("condition", self._condition, 5),
            ("time clause", self._time_clause, 4),
            ("reported", self._reported, 6),
            ("indirect question", self._indirect_question, 4),
            ("infinitive", self._infinitive, 4),
            ("purpose", self._purpose, 3),
            ("relative subject", self._relative_subject, 4),
            ("relative object", self._relative_object, 4),
            ("two clauses", self._two_clauses, 4),
        ):
            self._patterns += [(name, make)] * weight

    @property
    def patterns(self) -> list[str]:
        """Names of all patterns."""
        return list(dict.fromkeys(name for name, _ in self._patterns))

    def pair(self, random: Random) -> SentencePair:
        """Draw a sentence and its translation; equal random states give equal pairs."""
        name, make = pick(random, self._patterns)
        english, german = make(random)
        return SentencePair(english, german, name)

    def count_sentences(self) -> int:
        """Lower bound on the number of distinct English sentences.

        It counts only statements "subject verb object." in the simple past and third person, without negation, place
        and time. Their noun phrases have a noun, at most one adjective that is no colour, and no number above twelve.
        Different choices give different sentences: no past form occurs in a noun phrase, so the verb splits a
        sentence in one way, and every word of a noun phrase is only a determiner, only an adjective or only a noun.
        """
        subjects = sum(self._count_phrases(noun, is_object=False, plural=None) for noun in self._persons)
        return sum(
            subjects * sum(self._count_phrases(noun, is_object=True, plural=only_number(verb)) for noun in verb.objects)
            for verb in self.lexicon.transitive
            if verb.english.past != verb.english.base
        )

    # Patterns with one clause

    def _statement(self, random: Random) -> Sides:
        clause = self._clause(random, ANY_TENSE, has_time=True)
        time_first = clause.time is not None and random.random() < 0.4
        return _sides(english_statement(clause, time_first=time_first), german_statement(clause, time_first=time_first))

    def _place_first(self, random: Random) -> Sides:
        verb = pick(random, self._located)
        tense = pick(random, (PRESENT, PAST) if "stative" in verb.remarks else (PRESENT, PAST, FUTURE))
        clause = Clause(self._subject(random, verb), verb, tense, late=(self._location(random, verb),))
        return _sides(english_statement(clause, late_first=True), german_statement(clause, late_first=True))

    def _description(self, random: Random) -> Sides:
        noun = pick(random, self._described)
        is_negated = random.random() < 0.15
        subject = self._phrase(random, (noun,), is_negated=True, is_bare=True)
        if random.random() < 0.1:
            noun, subject = self._kin[0], pick(random, PRONOUNS)
        late = (self._predicate(random, noun),)
        tense = pick(random, (IS_NOW, IS_NOW, WAS_THEN))
        return _stated(Clause(subject, self.lexicon.other_verbs["be"], tense, is_negated, late=late))

    def _comparison(self, random: Random) -> Sides:
        first, second, adjectives = pick(random, self._compared)
        adjective = pick(random, adjectives)
        assert adjective.comparative is not None
        subject = self._phrase(random, (first,), is_negated=True, plural=False, is_bare=True)
        other = self._phrase(random, (second,), is_negated=True, plural=False, is_bare=True)
        if random.random() < 0.6:
            english, german = adjective.comparative
            late = Phrase(f"{english} than {other.english}", f"{german} als {other.german[NOMINATIVE]}")
        else:
            english, german = adjective.english, adjective.german
            late = Phrase(f"as {english} as {other.english}", f"so {german} wie {other.german[NOMINATIVE]}")
        is_negated = random.random() < 0.15
        tense = pick(random, (IS_NOW, IS_NOW, WAS_THEN))
        return _stated(Clause(subject, self.lexicon.other_verbs["be"], tense, is_negated, late=(late,)))

    def _profession(self, random: Random) -> Sides:
        """Profession of a person: German has no article without an adjective, and a separate word for a woman."""
        profession = pick(random, self._professions)
        is_man = random.random() < 0.5
        chance = random.random()
        if chance < 0.3:
            gender = MASCULINE if is_man else FEMININE
            subject = pick(random, [name for name in self._names if name.gender == gender])
        elif chance < 0.45:
            subject = PRONOUNS[2] if is_man else SHE
        else:
            kin = self._of_gender(self._kin, MASCULINE if is_man else FEMININE)
            subject = self._phrase(random, kin, plural=False, determiner=pick(random, POSSESSIVES))
        if not is_man:
            profession = self.lexicon.woman_of(profession)
        adjectives, is_very = self._adjectives(random, profession)
        late = profession_phrase(profession, adjectives, is_very=is_very)
        tense = pick(random, (IS_NOW, IS_NOW, WAS_THEN))
        be = self.lexicon.other_verbs["be"]
        return _stated(Clause(subject, be, tense, late=(late,)))

    def _belonging(self, random: Random) -> Sides:
        subject = self._phrase(random, self._things, determiner=THE if random.random() < 0.6 else None, is_negated=True)
        owner = self._phrase(random, self._persons, determiner=pick(random, POSSESSIVES))
        owner = pick(random, (owner, pick(random, self._names), pick(random, PRONOUNS)))
        verb = self.lexicon.other_verbs["belong to"]
        clause = Clause(subject, verb, pick(random, (PRESENT, PRESENT, PAST)), random.random() < 0.2, dative=owner)
        return _asked_or_stated(random, clause)

    def _origin(self, random: Random) -> Sides:
        name, own = pick(random, self.lexicon.cities + self.lexicon.countries)
        verb = self.lexicon.other_verbs["come"]
        is_negated = random.random() < 0.15
        subject = self._subject(random, is_negated=is_negated)
        return _asked_or_stated(
            random, Clause(subject, verb, PRESENT, is_negated, late=(Phrase(f"from {name}", f"aus {own}"),))
        )

    def _existence(self, random: Random) -> Sides:
        """Existence: "there is", es gibt with the accusative after the place."""
        chance = random.random()
        if chance < 0.4:
            place, nouns = pick(random, self._towns), tuple(place.noun for place in self._in_towns)
        elif chance < 0.7:
            place, nouns = pick(random, self._rooms), self._furniture
        else:
            place, nouns = pick(random, self._growing), self._outdoors + self._animals
        where = prepositional_phrase(
            place.where, self._phrase(random, (place.noun,), plural=False, determiner=pick(random, (THE, THE, THIS))),
            DATIVE,
        )  # fmt: skip
        is_plural = random.random() < 0.5
        determiner = pick(random, (MANY, SOME, NO, *self._small_numbers) if is_plural else (A, A, A, NO))
        phrase = self._phrase(random, nouns, plural=is_plural, determiner=determiner)
        is_past, place_first = random.random() < 0.25, random.random() < 0.5
        return _sides(*existence(phrase, where, is_past=is_past, place_first=place_first))

    def _spot(self, random: Random, nouns: tuple[Noun, ...], *, whereto: bool) -> tuple[Noun, Phrase]:
        """Draw a thing and the place where it is or is put, which is a different noun."""
        spot, noun = pick(random, self.lexicon.spots), pick(random, nouns)
        while noun is spot.noun:
            noun = pick(random, nouns)
        determiner = THE if random.random() < 0.7 else pick(random, (*POSSESSIVES, THIS, A))
        place = self._phrase(random, (spot.noun,), plural=False, determiner=determiner)
        english = spot.whereto if whereto else spot.where
        return noun, prepositional_phrase((english, spot.german), place, ACCUSATIVE if whereto else DATIVE)

    def _position(self, random: Random) -> Sides:
        lies = random.random() < 0.5
        noun, where = self._spot(random, self._flat if lies else self._upright, whereto=False)
        is_negated = random.random() < 0.1
        subject = self._phrase(random, (noun,), is_negated=is_negated)
        verb = self.lexicon.other_verbs["lie" if lies else "stand"]
        tense = pick(random, (PRESENT, PRESENT, PAST))
        return _asked_or_stated(random, Clause(subject, verb, tense, is_negated, late=(where,)))

    def _placement(self, random: Random) -> Sides:
        is_flat = random.random() < 0.5
        noun, whereto = self._spot(random, self._flat if is_flat else self._upright, whereto=True)
        verb = self.lexicon.other_verbs["lay" if is_flat else "put"]
        tense = pick(random, (PRESENT, PROGRESSIVE, FUTURE, MUST, CAN, PAST))
        subject = self._subject(random)
        accusative = self._phrase(random, (noun,), is_object=True)
        clause = Clause(subject, verb, tense, accusative=accusative, late=(whereto,))
        return _asked_or_stated(random, made_clear(clause))

    def _liking(self, random: Random) -> Sides:
        """Liking: "likes to", gern."""
        is_negated = random.random() < 0.2
        if random.random() < 0.5:
            verb = pick(random, [verb for verb in self._about_things if "stative" not in verb.remarks])
            subject = self._subject(random, verb, is_negated=is_negated)
            is_plural = "singular" not in verb.remarks
            determiner = NONE if is_plural else A
            accusative = self._phrase(random, verb.objects, plural=is_plural, determiner=determiner)
            clause = Clause(subject, verb, LIKES, is_negated, accusative=accusative)
        else:
            verb = pick(random, self._together)
            subject = self._subject(random, verb, is_negated=is_negated)
            late = (self._location(random, verb),) if random.random() < 0.6 else (self._with_someone(random),)
            clause = Clause(subject, verb, LIKES, is_negated, late=late if random.random() < 0.7 else ())
        return _asked_or_stated(random, clause)

    def _weather_statement(self, random: Random) -> Sides:
        is_past = random.random() < 0.5
        clause = self._weather(random, is_past=is_past)
        if random.random() < 0.6:
            name, own = pick(random, self.lexicon.cities + self.lexicon.countries)
            clause.late += (Phrase(f"in {name}", f"in {own}"),)
        if is_past and random.random() < 0.7:
            clause.time = pick(random, self._times[PAST])
        time_first = clause.time is not None and random.random() < 0.5
        return _sides(english_statement(clause, time_first=time_first), german_statement(clause, time_first=time_first))

    # Questions

    def _yes_no_question(self, random: Random) -> Sides:
        if random.random() < 0.2:
            clause = self._being(random, pick(random, (IS_NOW, WAS_THEN)))
            clause.is_negated = False
        else:
            clause = self._clause(random, ANY_TENSE, can_be_negated=False, has_time=True)
        return _asked(affirmed(clause))

    def _question(self, random: Random) -> Sides:
        english, german, clause = self._asked_for(random)
        if clause.subject is WHO:
            return _sides(join("who", english_who(clause)), german_main(clause), "?")
        return _sides(join(english, english_question(clause)), german_main(clause, german), "?")

    def _asked_for(self, random: Random) -> tuple[str, str, Clause]:
        """Draw a question word in English and German, and a clause without the part it asks for."""
        english, german, clause = self._question_word(random)
        return english, german, made_clear(affirmed(clause))

    def _question_word(self, random: Random) -> tuple[str, str, Clause]:
        kind = int(random.random() * 11)
        tense = pick(random, (PRESENT, PRESENT, PROGRESSIVE, PAST, PAST, PAST, FUTURE, CAN, MUST, WANTS))
        if kind == 0:
            return "who", "wer", self._clause(random, (tense,), subject=WHO, can_be_negated=False)
        if kind < 4:
            verb = self._verb(random, self._about_things, tense)
            clause = self._transitive(random, tense, False, None, verb)
            clause.accusative = None
            countable = [noun for noun in verb.objects if not noun.is_mass]
            if kind == 1 or only_number(verb) is not None or not countable:
                return "what", "was", clause
            if kind == 2:
                phrase = noun_phrase(pick(random, countable), HOW_MANY, is_plural=True)
            else:
                phrase = self._phrase(random, countable, determiner=WHICH)
            return phrase.english, phrase.german[ACCUSATIVE], clause
        if kind == 4:
            verb = self._verb(random, self._about_persons, tense)
            return "whom", "wen", Clause(self._subject(random, verb), verb, tense)
        if kind == 5:
            verb = self._verb(random, self.lexicon.dative, tense)
            return "whom", "wem", Clause(self._subject(random, verb), verb, tense)
        if kind == 6:
            verb = self._verb(random, self._located, tense)
            return "where", "wo", Clause(self._subject(random, verb), verb, tense)
        if kind == 7:
            verb = pick(random, self._whereto_verbs)
            return "where", "wohin", Clause(self._subject(random, verb), verb, tense)
        if kind == 8:
            verb = pick(random, self._together)
            return "with whom", "mit wem", Clause(self._subject(random, verb), verb, tense)
        if kind == 9:
            return "why", "warum", self._clause(random, (tense,), can_be_negated=False)
        clause = self._clause(random, (PRESENT, PAST, PAST, FUTURE), can_be_negated=False)
        # Stative verbs take no "when".
        english, german = ("why", "warum") if "stative" in clause.verb.remarks else ("when", "wann")
        return english, german, clause

    # Patterns with two clauses

    def _sub_subject(self, random: Random) -> NounPhrase | None:
        return pick(random, PRONOUNS) if random.random() < 0.4 else None

    def _joined(self, random: Random, conjunction: Sides, main: Clause, other: Clause) -> Sides:
        """Main clause with a subordinate clause before or after it."""
        english = join(conjunction[0], english_statement(other))
        german = german_subordinate(other, conjunction[1])
        if random.random() < 0.4:
            return _sides(join(english + ",", english_statement(main)), german_main(main, german + ","))
        return _sides(join(english_statement(main), english), join(german_main(main) + ",", german))

    def _reason(self, random: Random) -> Sides:
        is_past = random.random() < 0.5
        main = self._clause(random, THEN if is_past else NOW)
        other = self._any_clause(random, is_past=is_past, subject=self._sub_subject(random))
        return self._joined(random, pick(random, REASONS), main, other)

    def _condition(self, random: Random) -> Sides:
        conjunction = pick(random, (("if", "wenn"), ("if", "wenn"), ("as soon as", "sobald")))
        main = self._clause(random, (FUTURE, FUTURE, CAN, MUST, SHOULD, PRESENT))
        chance = random.random()
        if chance < 0.2:
            other = self._weather(random, is_past=False)
        elif chance < 0.35 and conjunction[0] == "if":
            other = self._being(random, IS_NOW, self._sub_subject(random))
        else:
            is_if = conjunction[0] == "if"
            other = self._clause(random, (PRESENT,), subject=self._sub_subject(random), can_be_negated=is_if)
        return self._joined(random, conjunction, main, affirmed(other))

    def _time_clause(self, random: Random) -> Sides:
        tenses = (PAST,) if random.random() < 0.6 else (PRESENT,)
        main = self._action(random, tenses)
        other = self._action(random, tenses, self._sub_subject(random))
        return self._joined(random, pick(random, WHENEVER), main, other)

    def _matrix(self, random: Random, kind: str) -> Clause:
        """Draw a matrix clause: who says, hopes, asks or tries something."""
        verb = pick(random, [verb for verb in self.lexicon.matrix if kind in verb.remarks])
        is_negated = verb.english.base in ("know", "think", "believe", "say") and random.random() < 0.25
        tense = pick(random, (PRESENT, PAST))
        return Clause(self._subject(random, is_negated=is_negated), verb, tense, is_negated)

    def _reported(self, random: Random) -> Sides:
        if random.random() < 0.3:
            matrix = self._matrix(random, WHETHER)
            if random.random() < 0.5:
                know = next(verb for verb in self.lexicon.matrix if verb.english.base == "know")
                subject = self._subject(random, is_negated=True)
                matrix = Clause(subject, know, pick(random, (PRESENT, PAST)), is_negated=True)
            conjunction = ("whether", "ob")
        else:
            matrix, conjunction = self._matrix(random, THAT), ("that", "dass")
        is_past = matrix.tense is PAST
        if matrix.verb.english.base == "hope" and not is_past:
            other = self._clause(random, (FUTURE,), subject=self._sub_subject(random), has_time=True)
        else:
            other = self._any_clause(random, is_past=is_past, subject=self._sub_subject(random))
        english = join(english_statement(matrix), conjunction[0], english_statement(other))
        return _sides(english, join(german_main(matrix) + ",", german_subordinate(other, conjunction[1])))

    def _indirect_question(self, random: Random) -> Sides:
        matrix = self._matrix(random, QUESTION)
        english, german, clause = self._asked_for(random)
        if clause.subject is WHO:
            inner = join("who", english_who(clause)), german_subordinate(clause, "wer", with_subject=False)
        else:
            inner = join(english, english_statement(clause)), german_subordinate(clause, german)
        return _sides(join(english_statement(matrix), inner[0]), join(german_main(matrix) + ",", inner[1]))

    def _infinitive(self, random: Random) -> Sides:
        matrix = self._matrix(random, INFINITIVE)
        inner = self._clause(random, (FUTURE,), subject=matrix.subject, can_be_negated=False)
        english = join(english_statement(matrix), english_predicate(inner, "to {base}"))
        german = german_infinitive(inner)
        # German has a comma only if the infinitive clause has more than the verb.
        comma = "" if german == inner.verb.german.zu_infinitive else ","
        return _sides(english, join(german_main(matrix) + comma, german))

    def _purpose(self, random: Random) -> Sides:
        purpose = pick(random, self._purposes)
        tense = pick(random, (PRESENT, PROGRESSIVE, PAST, PAST, FUTURE, WANTS, MUST))
        subject = self._subject(random)
        verb = pick(random, self._simple_motion)
        main = Clause(subject, verb, tense, late=(self._direction(random, purpose),))
        inner = Clause(subject, purpose, FUTURE)
        if purpose.objects:
            inner.accusative = self._object(random, purpose, subject)
        english = join(english_statement(main), english_predicate(inner, "to {base}"))
        return _sides(english, join(german_main(main) + ",", "um", german_infinitive(inner)))

    def _relative_subject(self, random: Random) -> Sides:
        """Relative clause "the man who ...": in German the pronoun agrees with its noun, and the verb is at the end."""
        head = self._phrase(random, self._persons, plural=random.random() < 0.3, determiner=None, is_negated=True)
        tense = pick(random, (PRESENT, PRESENT, PAST, PAST, CAN, WANTS))
        inner = self._clause(random, (tense,), subject=head)
        german = german_subordinate(inner, RELATIVE[NOMINATIVE][head.gender], with_subject=False)
        phrase = _extended(head, f"who {english_who(inner)}", german)
        if random.random() < 0.4:
            verb = pick(random, [verb for verb in self._about_persons if not verb.german.prefix])
            clause = Clause(self._subject(random, verb), verb, PRESENT, accusative=phrase)
        elif random.random() < 0.4:
            clause = self._being(random, IS_NOW, phrase)
        else:
            clause = self._clause(random, (PRESENT, PAST, FUTURE), subject=phrase)
        return _stated(clause)

    def _relative_object(self, random: Random) -> Sides:
        """Relative clause "the book that ... is new"."""
        tense = pick(random, (PRESENT, PAST, PAST, PAST, WANTS, PROGRESSIVE))
        verb = self._verb(random, self._about_things, tense)
        noun = pick(random, [noun for noun in verb.objects if noun.adjectives])
        head = self._phrase(random, (noun,), plural=only_number(verb), determiner=THE, is_bare=True)
        subject = self._subject(random, verb)
        inner = made_clear(Clause(subject, verb, tense))
        german = german_subordinate(inner, RELATIVE[ACCUSATIVE][head.gender])
        phrase = _extended(head, f"that {english_statement(inner)}", german)
        late = (self._predicate(random, noun),)
        is_negated = random.random() < 0.15
        main_tense = WAS_THEN if tense is PAST and random.random() < 0.6 else IS_NOW
        return _stated(Clause(phrase, self.lexicon.other_verbs["be"], main_tense, is_negated, late=late))

    def _two_clauses(self, random: Random) -> Sides:
        is_past = random.random() < 0.5
        first = self._clause(random, THEN if is_past else NOW)
        second = self._any_clause(random, is_past=is_past)
        english, german = english_statement(first), german_main(first)
        if random.random() < 0.6:
            return _sides(join(english, "and", english_statement(second)), join(german, "und", german_main(second)))
        return _sides(join(english + ", but", english_statement(second)), join(german + ", aber", german_main(second)))

    # Combinations of nouns, verbs and adjectives

    def _of_gender(self, nouns: tuple[Noun, ...], gender: int) -> list[Noun]:
        return [noun for noun in nouns if noun.gender == gender]

    def _has(self, verb: Verb, *classes: str) -> bool:
        return any(not noun.classes.isdisjoint(classes) for noun in verb.objects)

    def _noun_pairs(self) -> list[tuple[Noun, Noun, list[Adjective]]]:
        """Pairs of comparable nouns: they share a class and gradable adjectives, which are given."""
        pairs = []
        countable = [noun for noun in self._described if not noun.is_mass]
        for first, second in product(countable, countable):
            if first is second or first.classes.isdisjoint(second.classes):
                continue
            common = [each for each in first.adjectives if each in second.adjectives and each.comparative is not None]
            if common:
                pairs.append((first, second, common))
        return pairs


def _extended(head: NounPhrase, english: str, german: str) -> NounPhrase:
    """Add a relative clause to a noun phrase.

    Its final comma is dropped at the end of the sentence.
    """
    nominative, accusative, dative = (f"{form}, {german}," for form in head.german)
    english = f"{head.english} {english}"
    return NounPhrase(english, english, (nominative, accusative, dative), head.person, head.gender)


def _sides(english: str, german: str, end: str = ".") -> Sides:
    return sentence(english, end), sentence(german, end)


def _stated(clause: Clause) -> Sides:
    return _sides(english_statement(clause), german_main(clause))


def _asked(clause: Clause) -> Sides:
    return _sides(english_question(clause), german_main(clause, ""), "?")


def _asked_or_stated(random: Random, clause: Clause) -> Sides:
    can_be_asked = not clause.is_negated and not clause.subject.is_negative
    return _asked(clause) if can_be_asked and random.random() < 0.2 else _stated(clause)
