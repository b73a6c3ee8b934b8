"""Clauses: a meaning, and its English and German word order."""

from dataclasses import dataclass

from experiments.corpora.english_german.inflection import ACCUSATIVE, DATIVE, HE, NOMINATIVE, SEIN, Forms
from experiments.corpora.english_german.lexicon import Verb
from experiments.corpora.english_german.phrases import NounPhrase, Phrase

DO: Forms = ("do", "do", "does", "do", "do")
DID: Forms = ("did", "did", "did", "did", "did")
IS: Forms = ("am", "are", "is", "are", "are")
WAS: Forms = ("was", "were", "was", "were", "were")


@dataclass(frozen=True, eq=False)
class Tense:
    """Tense or modality, with the verb forms of both languages.

    Attributes:
        auxiliary: English auxiliary by person, for questions and negations, and for plain statements if `plain` is
            None.
        main: format of the English verb after the auxiliary, with {base}, {third}, {past} and {ing}.
        plain: formats of the English verb without auxiliary, for the third person singular and for all others.
        finite: German finite auxiliary by person, with the main verb at the end as `last`; None: the main verb's
            present, or for a participle its perfect auxiliary.
        last: German word at the end of a main clause: "prefix", "infinitive", "participle", or "" for none.
        adverb: additional German adverb, or "".
        negated: German forms that replace `finite` in negations, where the languages negate different modals.
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
# For `be` only, which takes no auxiliary in English and no perfect in German.
IS_NOW = Tense(IS, "", None, SEIN, "")
WAS_THEN = Tense(WAS, "", None, ("war", "warst", "war", "waren", "waren"), "")


@dataclass(slots=True)
class Clause:
    """Meaning of a clause: subject, verb, objects, places and times.

    Attributes:
        is_negated: negation: "not" in English; "nicht", or "kein" in the object, in German.
        dative: dative object, the first object in English.
        accusative: accusative object, the second object in English.
        late: places, directions and similar phrases in English order; German reverses them.
        time: time phrase, first or last in English.
        frequency: frequency adverb, before the verb in English.
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
    """Join non-empty words and phrases with spaces; merge consecutive commas."""
    return " ".join(part for part in parts if part).replace(",,", ",").replace(", ,", ",")


def sentence(text: str, end: str = ".") -> str:
    """Turn a clause into a sentence with a capital letter and `end`."""
    return text[0].upper() + text[1:].removesuffix(",") + end


# English


def english_statement(clause: Clause, *, time_first: bool = False, late_first: bool = False) -> str:
    """Statement with the subject before the verb; `time_first` or `late_first` moves that phrase to the front."""
    time = clause.time.english if clause.time else ""
    late = " ".join([phrase.english for phrase in clause.late])
    front = time if time_first else late if late_first else ""
    return join(
        front, clause.subject.english, _english_verb(clause), *_english_objects(clause), "" if late_first else late,
        "" if time_first else time,
    )  # fmt: skip


def english_question(clause: Clause) -> str:
    """Question with the auxiliary before the subject.

    The clause lacks the part that a question word asks for.
    """
    auxiliary, main = _english_forms(clause)
    time = clause.time.english if clause.time else ""
    late = [phrase.english for phrase in clause.late]
    is_not = "not" if clause.is_negated else ""
    frequency = clause.frequency.english if clause.frequency else ""
    return join(
        auxiliary, clause.subject.english, is_not, frequency, main, *_english_objects(clause), *late, time,
    )  # fmt: skip


def english_predicate(clause: Clause, form: str) -> str:
    """Clause without its subject, with the verb in `form`, such as "to {base}"."""
    verb = form.format_map(_forms_of(clause.verb))
    time = clause.time.english if clause.time else ""
    return join(verb, *_english_objects(clause), *(phrase.english for phrase in clause.late), time)


def english_who(clause: Clause) -> str:
    """Clause without its subject."""
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
    """Main clause with the finite verb in second position, after `front` or the subject.

    Args:
        front: first part of the clause; None: the subject; "": nothing, which makes a question.
    """
    finite, last = _german_verb(clause)
    if front is None:
        return join(clause.subject.german[NOMINATIVE], finite, _middle(clause), last)
    return join(front, finite, clause.subject.german[NOMINATIVE], _middle(clause), last)


def german_statement(clause: Clause, *, time_first: bool = False, late_first: bool = False) -> str:
    """Main clause with the same first part as the English statement."""
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
    """Subordinate clause with the verb at the end and its separable prefix attached.

    Args:
        first: first word: weil, dass, wer, der, ...
        with_subject: whether to add the subject; False if `first` is the subject.
    """
    finite, last = _german_verb(clause)
    verb = last + finite if clause.tense.last == "prefix" else join(last, finite)
    return join(first, clause.subject.german[NOMINATIVE] if with_subject else "", _middle(clause), verb)


def german_infinitive(clause: Clause) -> str:
    """Infinitive clause without a subject, with the zu-infinitive at the end."""
    return join(_middle(clause), clause.verb.german.zu_infinitive)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """Finite form, and the part of the verb at the end of a main clause."""
    tense, german, person = clause.tense, clause.verb.german, clause.subject.person
    finite = tense.negated if clause.is_negated and tense.negated else tense.finite
    if tense.last == "participle":
        return (finite or german.auxiliary)[person], german.participle
    last = {"infinitive": german.infinitive, "prefix": german.prefix}.get(tense.last, "")
    return (finite or german.present)[person], last


def _middle(clause: Clause) -> str:
    """Words between the two parts of the verb.

    Pronouns come first. Noun objects precede the adverbs if the clause has "nicht", and follow them otherwise.
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
    """English and German for "there is": es gibt with the accusative, after the place.

    With `place_first` the place comes first in English too.
    """
    verb = (WAS if is_past else IS)[phrase.person]
    words = ["there", verb, phrase.english]
    english = join(where.english, *words) if place_first else join(*words, where.english)
    return english, join(where.german, "gab es" if is_past else "gibt es", phrase.german[ACCUSATIVE])
