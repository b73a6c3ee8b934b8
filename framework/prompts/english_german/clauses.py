"""Clauses: one meaning, and both word orders made from it."""

from dataclasses import dataclass

from framework.prompts.english_german.inflection import ACCUSATIVE, DATIVE, HE, NOMINATIVE, SEIN, Forms
from framework.prompts.english_german.lexicon import Verb
from framework.prompts.english_german.phrases import NounPhrase, Phrase

DO: Forms = ("do", "do", "does", "do", "do")
DID: Forms = ("did", "did", "did", "did", "did")
IS: Forms = ("am", "are", "is", "are", "are")
WAS: Forms = ("was", "were", "was", "were", "were")


@dataclass(frozen=True, eq=False)
class Tense:
    """When, or how willingly, with the verb forms of both languages.

    Attributes:
        auxiliary: English, by person: of questions and negations, and of plain statements if `plain` is None.
        main: what stands behind the auxiliary, made of {base}, {third}, {past} and {ing}.
        plain: English forms without the auxiliary, for he and for all others.
        finite: German forms that put the verb itself at the end as `last`, "infinitive" or "participle"; None is the
            verb's own present, or for a participle its auxiliary.
        last: "prefix", "infinitive", "participle" or "" for nothing.
        adverb: what German adds.
        negated: German forms in place of `finite` beside not, where the two languages negate different things.
    """

    auxiliary: Forms
    main: str
    plain: tuple[str, str] | None
    finite: Forms | None
    last: str
    adverb: str = ""
    negated: Forms | None = None


def _same(word: str) -> Forms:
    return (word, word, word, word, word)


KANN: Forms = ("kann", "kannst", "kann", "können", "können")
MUSS: Forms = ("muss", "musst", "muss", "müssen", "müssen")
DARF: Forms = ("darf", "darfst", "darf", "dürfen", "dürfen")
WILL: Forms = ("will", "willst", "will", "wollen", "wollen")
WIRD: Forms = ("werde", "wirst", "wird", "werden", "werden")


def _preterite(stem: str) -> Forms:
    return (stem, stem + "st", stem, stem + "n", stem + "n")


PRESENT = Tense(DO, "{base}", ("{third}", "{base}"), None, "prefix")
PROGRESSIVE = Tense(IS, "{ing}", None, None, "prefix", adverb="gerade")
LIKES = Tense(DO, "like to {base}", ("likes to {base}", "like to {base}"), None, "prefix", adverb="gern")
PAST = Tense(DID, "{base}", ("{past}", "{past}"), None, "participle")
FUTURE = Tense(_same("will"), "{base}", None, WIRD, "infinitive")
CAN = Tense(_same("can"), "{base}", None, KANN, "infinitive")
MUST = Tense(_same("must"), "{base}", None, MUSS, "infinitive", negated=DARF)
MAY = Tense(_same("may"), "{base}", None, DARF, "infinitive")
SHOULD = Tense(_same("should"), "{base}", None, _preterite("sollte"), "infinitive")
WANTS = Tense(DO, "want to {base}", ("wants to {base}", "want to {base}"), WILL, "infinitive")
HAS_TO = Tense(DO, "have to {base}", ("has to {base}", "have to {base}"), MUSS, "infinitive")
COULD = Tense(_same("could"), "{base}", None, _preterite("konnte"), "infinitive")
WANTED = Tense(DID, "want to {base}", ("wanted to {base}", "wanted to {base}"), _preterite("wollte"), "infinitive")
HAD_TO = Tense(DID, "have to {base}", ("had to {base}", "had to {base}"), _preterite("musste"), "infinitive")
# Of be only, which needs no help in English and no perfect in German.
IS_NOW = Tense(IS, "", None, SEIN, "")
WAS_THEN = Tense(WAS, "", None, ("war", "warst", "war", "waren", "waren"), "")


@dataclass(slots=True)
class Clause:
    """Who does what to whom, where and when.

    Attributes:
        is_negated: English says not; German says nicht, or kein in the object.
        dative, accusative: the objects, which English has in this order.
        late: places, directions and the like, in English order; German has them the other way round.
        time: English says it last, or first.
        frequency: English says it before the verb.
    """

    subject: NounPhrase
    verb: Verb
    tense: Tense
    is_negated: bool = False
    dative: NounPhrase | None = None
    accusative: NounPhrase | None = None
    late: tuple[Phrase, ...] = ()
    time: Phrase | None = None
    frequency: Phrase | None = None


def join(*parts: str) -> str:
    """Words and phrases with a space between; a comma at the end of one is dropped before another comma."""
    return " ".join(part for part in parts if part).replace(",,", ",").replace(", ,", ",")


def sentence(text: str, end: str = ".") -> str:
    """A clause as a sentence: a capital first, `end` last."""
    return text[0].upper() + text[1:].removesuffix(",") + end


# English


def english_statement(clause: Clause, *, time_first: bool = False, late_first: bool = False) -> str:
    """Subject before verb; `time_first` and `late_first` move what stood at the end to the beginning."""
    time = clause.time.english if clause.time else ""
    late = " ".join([phrase.english for phrase in clause.late])
    front = time if time_first else late if late_first else ""
    return join(
        front, clause.subject.english, _english_verb(clause), *_english_objects(clause), "" if late_first else late,
        "" if time_first else time,
    )  # fmt: skip


def english_question(clause: Clause) -> str:
    """Auxiliary before subject; what a question word asks for is not in the clause."""
    auxiliary, main = _english_forms(clause)
    time = clause.time.english if clause.time else ""
    late = [phrase.english for phrase in clause.late]
    is_not = "not" if clause.is_negated else ""
    frequency = clause.frequency.english if clause.frequency else ""
    return join(
        auxiliary, clause.subject.english, is_not, frequency, main, *_english_objects(clause), *late, time,
    )  # fmt: skip


def english_predicate(clause: Clause, form: str) -> str:
    """The clause without its subject, its verb as `form`, such as "to {base}"."""
    verb = form.format_map(_forms_of(clause.verb))
    time = clause.time.english if clause.time else ""
    return join(verb, *_english_objects(clause), *(phrase.english for phrase in clause.late), time)


def english_who(clause: Clause) -> str:
    """The clause without its subject."""
    late = [phrase.english for phrase in clause.late]
    time = clause.time.english if clause.time else ""
    return join(_english_verb(clause), *_english_objects(clause), *late, time)


def _forms_of(verb: Verb) -> dict[str, str]:
    english = verb.english
    return {"base": english.base, "third": english.third, "past": english.past, "ing": english.ing}


def _english_forms(clause: Clause) -> tuple[str, str]:
    tense = clause.tense
    return tense.auxiliary[clause.subject.person], tense.main.format_map(_forms_of(clause.verb))


def _english_verb(clause: Clause) -> str:
    frequency = clause.frequency.english if clause.frequency else ""
    tense, person = clause.tense, clause.subject.person
    if tense.plain is not None and not clause.is_negated:
        plain = tense.plain[person != HE].format_map(_forms_of(clause.verb))
        return f"{frequency} {plain}" if frequency else plain
    auxiliary, main = _english_forms(clause)
    if clause.is_negated:
        auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
    return join(auxiliary, frequency, main)


def _english_objects(clause: Clause) -> list[str]:
    return [phrase.english_object for phrase in (clause.dative, clause.accusative) if phrase is not None]


# German


def german_main(clause: Clause, front: str | None = None) -> str:
    """A main clause: the finite verb is the second part, behind `front`, or else behind the subject.

    Args:
        front: what the clause begins with; "" is nothing, which makes it a question, and None the subject.
    """
    finite, last = _german_verb(clause)
    if front is None:
        return join(clause.subject.german[NOMINATIVE], finite, _middle(clause), last)
    return join(front, finite, clause.subject.german[NOMINATIVE], _middle(clause), last)


def german_statement(clause: Clause, *, time_first: bool = False, late_first: bool = False) -> str:
    """A main clause in the order of the English one: what is first there is first here."""
    if time_first and clause.time is not None:
        time, clause.time = clause.time, None
        german = german_main(clause, time.german)
        clause.time = time
        return german
    if late_first and clause.late:
        late, clause.late = clause.late, ()
        german = german_main(clause, " ".join(phrase.german for phrase in reversed(late)))
        clause.late = late
        return german
    return german_main(clause)


def german_subordinate(clause: Clause, first: str, *, with_subject: bool = True) -> str:
    """A clause behind another: its verb is at the end, with the prefix that a main clause splits off.

    Args:
        first: weil, dass, wer, der ...; what the clause begins with.
        with_subject: False where `first` is the subject.
    """
    finite, last = _german_verb(clause)
    verb = last + finite if clause.tense.last == "prefix" else join(last, finite)
    return join(first, clause.subject.german[NOMINATIVE] if with_subject else "", _middle(clause), verb)


def german_infinitive(clause: Clause) -> str:
    """A clause without a subject, its infinitive with zu at the end."""
    return join(_middle(clause), clause.verb.german.zu_infinitive)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """The finite form, and what stands at the end of a main clause."""
    tense, german, person = clause.tense, clause.verb.german, clause.subject.person
    finite = tense.negated if clause.is_negated and tense.negated else tense.finite
    if tense.last == "participle":
        return (finite or german.auxiliary)[person], german.participle
    last = {"infinitive": german.infinitive, "prefix": german.prefix}.get(tense.last, "")
    return (finite or german.present)[person], last


def _middle(clause: Clause) -> str:
    """What stands between the two parts of the verb.

    Pronouns come first. A noun that nicht negates comes before the time, any other behind it.
    """
    pronouns: list[str] = []
    nouns: list[str] = []
    has_kein = False
    for phrase, case in ((clause.dative, DATIVE), (clause.accusative, ACCUSATIVE)):
        if phrase is not None:
            (pronouns if phrase.is_pronoun else nouns).append(phrase.german[case])
            has_kein |= phrase.is_negative
    says_nicht = clause.is_negated and not has_kein
    likes = clause.tense is LIKES
    adverbs = [phrase.german for phrase in (clause.time, clause.frequency) if phrase is not None]
    if likes and says_nicht:
        adverbs.append("nicht")
    adverbs.append(clause.tense.adverb)
    late = [phrase.german for phrase in reversed(clause.late)]
    if says_nicht and not likes:
        return join(*pronouns, *nouns, *adverbs, "nicht", *late)
    return join(*pronouns, *adverbs, *nouns, *late)


# Both


def existence(phrase: NounPhrase, where: Phrase, *, is_past: bool, place_first: bool) -> tuple[str, str]:
    """There is: es gibt, with the accusative, behind the place; `place_first` says it first in English, too."""
    verb = (WAS if is_past else IS)[phrase.person]
    words = ["there", verb, phrase.english]
    english = join(where.english, *words) if place_first else join(*words, where.english)
    return english, join(where.german, "gab es" if is_past else "gibt es", phrase.german[ACCUSATIVE])
