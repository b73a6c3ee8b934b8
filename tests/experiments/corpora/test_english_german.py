"""The grammar of English and German: right sentences, one translation for each, and a split that keeps them apart."""

from collections import Counter
from random import Random

import pytest

from experiments.corpora.english_german import phrases
from experiments.corpora.english_german.clauses import (
    CAN,
    COULD,
    FUTURE,
    HAD_TO,
    HAS_TO,
    IS_NOW,
    LIKES,
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
from experiments.corpora.english_german.drawing import IT, PRONOUNS, WHO
from experiments.corpora.english_german.grammar import Grammar, SentencePair
from experiments.corpora.english_german.inflection import (
    ACCUSATIVE,
    DATIVE,
    FEMININE,
    NOMINATIVE,
    RELATIVE,
    english_number,
    english_plural,
    english_verb,
    german_number,
    german_verb,
)
from experiments.corpora.english_german.lexicon import Lexicon, Noun, Verb
from experiments.corpora.english_german.phrases import NounPhrase, Phrase
from experiments.corpora.grammar_pairs import HELD_OUT_SHARE, GrammarPairs, is_held_out
from framework.prompts.prompt_source import Text

NUM_SAMPLES = 200_000
LEXICON = Lexicon()
NOUNS = {form: (noun, is_plural) for noun in LEXICON.nouns for is_plural, form in enumerate(noun.english)}
ADJECTIVES = {adjective.english: adjective for adjective in LEXICON.adjectives + LEXICON.colours}
NAMED = (
    phrases.THE, phrases.A, phrases.THIS, phrases.THESE, phrases.EVERY, phrases.WHICH, phrases.ALL, phrases.MANY,
    phrases.SOME, phrases.HOW_MANY, phrases.NO, phrases.NOT_ANY, *phrases.POSSESSIVES,
    *(phrases.possessive_of(name) for name in LEXICON.women), *(phrases.number_of(number) for number in range(2, 100)),
)  # fmt: skip
DETERMINERS = {determiner.english: determiner for determiner in NAMED}
TIMES = {time.english: time for time in (*phrases.present_times(), *phrases.past_times(), *phrases.future_times())}
VERBS = [
    *LEXICON.transitive, *LEXICON.intransitive, *LEXICON.motion, *LEXICON.dative, *LEXICON.giving, *LEXICON.matrix,
    *LEXICON.other_verbs.values(), *LEXICON.prepositional,
]  # fmt: skip


def who(english: str, *, negated: bool = False) -> NounPhrase:
    """The noun phrase of some English words; `negated` makes a and any kein."""
    for pronoun in (*PRONOUNS, IT, WHO):
        if english in (pronoun.english, pronoun.english_object):
            return pronoun
    if english in LEXICON.women:
        return phrases.name_phrase(english, FEMININE)
    words = english.split(" ")
    determiner = phrases.NONE
    for length in (2, 1):
        named = " ".join(words[:length]).replace("an", "a") if words[0] == "an" else " ".join(words[:length])
        if named in DETERMINERS and len(words) > length:
            determiner, words = DETERMINERS[named], words[length:]
            break
    if negated and determiner is phrases.A:
        determiner = phrases.NOT_A
    is_very = words[0] == "very"
    words = words[is_very:]
    adjectives = []
    while words[0] in ADJECTIVES:
        adjectives.append(ADJECTIVES[words.pop(0)])
    noun, is_plural = NOUNS[" ".join(words)]
    phrase = phrases.noun_phrase(
        noun, determiner, tuple(adjectives), is_plural=bool(is_plural) and not noun.is_mass, is_very=is_very
    )
    assert phrase.english == english
    return phrase


def verb(base: str) -> Verb:
    return next(verb for verb in VERBS if verb.english.base == base)


def at(english: str) -> Phrase:
    """A place to be, of its English."""
    return _place(english, whereto=False)


def to(english: str) -> Phrase:
    """A place to go, of its English."""
    return _place(english, whereto=True)


def _place(english: str, *, whereto: bool) -> Phrase:
    preposition, _, rest = english.partition(" ")
    noun = rest.split(" ")[-1]
    for place in LEXICON.places:
        pair = place.whereto if whereto else place.where
        if place.noun.english[0] == noun and pair[0] == preposition:
            case = ACCUSATIVE if whereto and pair[1] != "zu" else DATIVE
            return phrases.prepositional_phrase(pair, who(rest), case)
    raise AssertionError(english)


def about(english: str, base: str) -> Phrase:
    """The object of a verb with a preposition."""
    preposition, _, rest = english.partition(" ")
    (found,) = [
        each
        for each in LEXICON.prepositional
        if each.english.base == base and (each.preposition or ("",))[0] == preposition
    ]
    assert found.preposition is not None
    return phrases.prepositional_phrase(found.preposition, who(rest), found.case)


def spot(english: str, case: int) -> Phrase:
    """On, under, next to something."""
    before, _, after = english.rpartition(" the ")
    (german,) = {each.german for each in LEXICON.spots if before in (each.where, each.whereto)}
    return phrases.prepositional_phrase((before, german), who(f"the {after}"), case)


def clause(
    subject: str,
    base: str,
    tense: Tense,
    *,
    no: bool = False,
    to_whom: str | None = None,
    what: str | None = None,
    late: tuple[Phrase, ...] | Phrase = (),
    when: str | None = None,
    often: str | None = None,
) -> Clause:
    return Clause(
        who(subject), verb(base), tense, no,
        dative=who(to_whom) if to_whom else None,
        accusative=who(what, negated=no) if what else None,
        late=late if isinstance(late, tuple) else (late,),
        time=TIMES[when] if when else None,
        frequency=next(each for each in phrases.FREQUENCIES if each.english == often) if often else None,
    )  # fmt: skip


def states(*args, first: str | None = None, **options) -> tuple[str, str]:
    made = clause(*args, **options)
    fronts = {"time_first": first == "time", "late_first": first == "late"}
    return sentence(english_statement(made, **fronts)), sentence(german_statement(made, **fronts))


def asks(*args, word: tuple[str, str] = ("", ""), **options) -> tuple[str, str]:
    made = clause(*args, **options)
    return sentence(join(word[0], english_question(made)), "?"), sentence(german_main(made, word[1]), "?")


def joins(main: Clause, conjunction: tuple[str, str], other: Clause) -> tuple[str, str]:
    english = join(english_statement(main), conjunction[0], english_statement(other))
    return sentence(english), sentence(join(german_main(main) + ",", german_subordinate(other, conjunction[1])))


GOLDEN = [
    # Articles, adjectives, numbers, cases
    (states("the old teacher", "buy", PRESENT, what="three red apples", late=at("at the market")),
     "The old teacher buys three red apples at the market.",
     "Der alte Lehrer kauft drei rote Äpfel auf dem Markt."),
    (states("a small child", "eat", PRESENT, what="a sweet cherry"),
     "A small child eats a sweet cherry.", "Ein kleines Kind isst eine süße Kirsche."),
    (states("my young sister", "see", PRESENT, what="the tired lion"),
     "My young sister sees the tired lion.", "Meine junge Schwester sieht den müden Löwen."),
    (states("every good chef", "need", PRESENT, what="a new knife"),
     "Every good chef needs a new knife.", "Jeder gute Koch braucht ein neues Messer."),
    (states("no friendly waiter", "drink", PRESENT, what="cold coffee"),
     "No friendly waiter drinks cold coffee.", "Kein freundlicher Kellner trinkt kalten Kaffee."),
    (states("our aunts", "help", PRESENT, to_whom="many poor farmers"),
     "Our aunts help many poor farmers.", "Unsere Tanten helfen vielen armen Bauern."),
    (states("all rich guests", "thank", PRESENT, to_whom="the nice nurse"),
     "All rich guests thank the nice nurse.", "Alle reichen Gäste danken der netten Krankenschwester."),
    (states("these brave boys", "follow", PAST, to_whom="a wild horse"),
     "These brave boys followed a wild horse.", "Diese mutigen Jungen sind einem wilden Pferd gefolgt."),
    (states("she", "count", PRESENT, what="twenty-three stars"),
     "She counts twenty-three stars.", "Sie zählt dreiundzwanzig Sterne."),
    (states("I", "collect", PRESENT, what="old coins"), "I collect old coins.", "Ich sammle alte Münzen."),
    (states("you", "sell", PRESENT, what="an expensive ring"),
     "You sell an expensive ring.", "Du verkaufst einen teuren Ring."),
    (states("Anna", "wear", PRESENT, what="Clara's new blue dress"),
     "Anna wears Clara's new blue dress.", "Anna trägt Claras neues blaues Kleid."),
    (states("the boy", "play", PAST, late=(about("with Anna's small dog", "play"),)),
     "The boy played with Anna's small dog.", "Der Junge hat mit Annas kleinem Hund gespielt."),
    (states("the king", "greet", PRESENT, what="the young prince"),
     "The king greets the young prince.", "Der König grüßt den jungen Prinzen."),
    (states("a very old man", "live", PRESENT, late=at("in the dark castle")),
     "A very old man lives in the dark castle.", "Ein sehr alter Mann wohnt im dunklen Schloss."),
    # Verb-second, and what may stand first
    (states("the teacher", "buy", PAST, what="a book", when="yesterday", first="time"),
     "Yesterday the teacher bought a book.", "Gestern hat der Lehrer ein Buch gekauft."),
    (states("the children", "play", PRESENT, late=at("in the garden"), first="late"),
     "In the garden the children play.", "Im Garten spielen die Kinder."),
    (states("we", "travel", FUTURE, late=(Phrase("to Berlin", "nach Berlin"), phrases.MEANS[0]), when="tomorrow"),
     "We will travel to Berlin by train tomorrow.", "Wir werden morgen mit dem Zug nach Berlin reisen."),
    (states("you", "read", PRESENT, what="the newspaper", when="every morning", first="time"),
     "Every morning you read the newspaper.", "Jeden Morgen liest du die Zeitung."),
    (states("my father", "read", PRESENT, what="books", often="often"),
     "My father often reads books.", "Mein Vater liest oft Bücher."),
    (states("the doctor", "arrive", PAST, late=at("at the station"), when="at half past three"),
     "The doctor arrived at the station at half past three.",
     "Der Arzt ist um halb vier am Bahnhof angekommen."),
    (states("he", "get up", PRESENT, when="at one o'clock"), "He gets up at one o'clock.", "Er steht um ein Uhr auf."),
    (states("she", "have breakfast", PAST, when="at half past twelve"),
     "She had breakfast at half past twelve.", "Sie hat um halb eins gefrühstückt."),
    (states("the pilots", "fly", PAST, late=Phrase("to Italy", "nach Italien"), when="two weeks ago"),
     "The pilots flew to Italy two weeks ago.", "Die Piloten sind vor zwei Wochen nach Italien geflogen."),
    (states("the student", "wait", PRESENT, late=(about("for the bus", "wait"), at("at the station"))),
     "The student waits for the bus at the station.", "Der Student wartet am Bahnhof auf den Bus."),
    # Separable verbs
    (states("the mother", "shop", PRESENT, late=at("at the market")),
     "The mother shops at the market.", "Die Mutter kauft auf dem Markt ein."),
    (states("the aunt", "shop", PAST, when="on Monday"),
     "The aunt shopped on Monday.", "Die Tante hat am Montag eingekauft."),
    (states("he", "call", PRESENT, what="me"), "He calls me.", "Er ruft mich an."),
    (states("you", "invite", PRESENT, what="the neighbour"), "You invite the neighbour.", "Du lädst den Nachbarn ein."),
    (states("the girl", "try on", FUTURE, what="this jacket"),
     "The girl will try on this jacket.", "Das Mädchen wird diese Jacke anprobieren."),
    (states("the engineer", "repair", PROGRESSIVE, what="the car"),
     "The engineer is repairing the car.", "Der Ingenieur repariert gerade das Auto."),
    (states("the waiter", "turn off", PROGRESSIVE, what="the lamp"),
     "The waiter is turning off the lamp.", "Der Kellner schaltet gerade die Lampe aus."),
    # Modal verbs
    (states("I", "swim", CAN), "I can swim.", "Ich kann schwimmen."),
    (states("the boy", "tidy up", MUST, what="his room"),
     "The boy must tidy up his room.", "Der Junge muss sein Zimmer aufräumen."),
    (states("the boy", "drink", MUST, no=True, what="any beer"),
     "The boy must not drink any beer.", "Der Junge darf kein Bier trinken."),
    (states("you", "open", HAS_TO, no=True, what="the door"),
     "You do not have to open the door.", "Du musst die Tür nicht öffnen."),
    (states("my son", "watch TV", WANTS), "My son wants to watch TV.", "Mein Sohn will fernsehen."),
    (states("we", "go", MAY, late=to("to the cinema"), when="today"),
     "We may go to the cinema today.", "Wir dürfen heute ins Kino gehen."),
    (states("you", "help", SHOULD, to_whom="her"), "You should help her.", "Du solltest ihr helfen."),
    (states("the bear", "sleep", COULD, no=True), "The bear could not sleep.", "Der Bär konnte nicht schlafen."),
    (states("they", "stay", HAD_TO, late=Phrase("at home", "zu Hause")),
     "They had to stay at home.", "Sie mussten zu Hause bleiben."),
    (states("the judge", "visit", WANTED, what="us"),
     "The judge wanted to visit us.", "Der Richter wollte uns besuchen."),
    (states("the bird", "swim", CAN, no=True), "The bird cannot swim.", "Der Vogel kann nicht schwimmen."),
    # Negation
    (states("the farmer", "sell", PAST, no=True, what="the car", when="yesterday"),
     "The farmer did not sell the car yesterday.", "Der Bauer hat das Auto gestern nicht verkauft."),
    (states("I", "eat", PRESENT, no=True, what="an apple"), "I do not eat an apple.", "Ich esse keinen Apfel."),
    (states("the baker", "have", PRESENT, no=True, what="any chairs"),
     "The baker does not have any chairs.", "Der Bäcker hat keine Stühle."),
    (states("we", "go", PRESENT, no=True, late=to("to the school")),
     "We do not go to the school.", "Wir gehen nicht in die Schule."),
    (states("the cat", "play", PROGRESSIVE, no=True, late=at("in the kitchen")),
     "The cat is not playing in the kitchen.", "Die Katze spielt gerade nicht in der Küche."),
    (states("she", "know", PRESENT, no=True, what="him"), "She does not know him.", "Sie kennt ihn nicht."),
    # Two objects
    (states("the grandmother", "give", PRESENT, to_whom="the child", what="a picture"),
     "The grandmother gives the child a picture.", "Die Großmutter gibt dem Kind ein Bild."),
    (states("Lena", "show", PAST, to_whom="them", what="her new coat"),
     "Lena showed them her new coat.", "Lena hat ihnen ihren neuen Mantel gezeigt."),
    (states("the uncle", "offer", PRESENT, to_whom="his guests", what="tea"),
     "The uncle offers his guests tea.", "Der Onkel bietet seinen Gästen Tee an."),
    (states("they", "tell", PRESENT, no=True, to_whom="me", what="any jokes"),
     "They do not tell me any jokes.", "Sie erzählen mir keine Witze."),
    # Where, and where to
    (states("the book", "lie", PRESENT, late=spot("on the table", DATIVE)),
     "The book lies on the table.", "Das Buch liegt auf dem Tisch."),
    (states("he", "lay", PRESENT, what="the book", late=spot("on the table", ACCUSATIVE)),
     "He lays the book on the table.", "Er legt das Buch auf den Tisch."),
    (states("she", "put", FUTURE, what="the bottle", late=spot("into the cupboard", ACCUSATIVE)),
     "She will put the bottle into the cupboard.", "Sie wird die Flasche in den Schrank stellen."),
    (states("the lamp", "stand", PRESENT, late=spot("next to the bed", DATIVE)),
     "The lamp stands next to the bed.", "Die Lampe steht neben dem Bett."),
    (states("the dog", "run", PAST, late=to("into the house")),
     "The dog ran into the house.", "Der Hund ist ins Haus gelaufen."),
    (states("the nurse", "drive", PRESENT, late=to("to the airport")),
     "The nurse drives to the airport.", "Die Krankenschwester fährt zum Flughafen."),
    (states("the nurse", "go", PRESENT, late=to("to the bakery")),
     "The nurse goes to the bakery.", "Die Krankenschwester geht zur Bäckerei."),
    (states("the child", "go", PAST, late=to("to the beach")),
     "The child went to the beach.", "Das Kind ist an den Strand gegangen."),
    (states("we", "stay", PAST, late=at("on the island"), when="in summer"),
     "We stayed on the island in summer.", "Wir sind im Sommer auf der Insel geblieben."),
    # Prepositions of verbs
    (states("the girl", "wait", PRESENT, late=about("for her friend", "wait")),
     "The girl waits for her friend.", "Das Mädchen wartet auf ihren Freund."),
    (states("my aunt", "live", PRESENT, late=about("with the uncle", "live")),
     "My aunt lives with the uncle.", "Meine Tante wohnt beim Onkel."),
    (states("I", "dream", PRESENT, late=about("of the lake", "dream")),
     "I dream of the lake.", "Ich träume vom See."),
    (states("you", "take part", PRESENT, late=about("in the race", "take part")),
     "You take part in the race.", "Du nimmst am Rennen teil."),
    # To be, to like, to belong, to exist
    (states("the houses", "be", IS_NOW, late=Phrase("very old", "sehr alt")),
     "The houses are very old.", "Die Häuser sind sehr alt."),
    (states("I", "be", WAS_THEN, no=True, late=Phrase("tired", "müde")),
     "I was not tired.", "Ich war nicht müde."),
    (states("our dog", "be", IS_NOW, late=Phrase("bigger than your cat", "größer als deine Katze")),
     "Our dog is bigger than your cat.", "Unser Hund ist größer als deine Katze."),
    (states("the girl", "swim", LIKES), "The girl likes to swim.", "Das Mädchen schwimmt gern."),
    (states("he", "drink", LIKES, no=True, what="coffee"),
     "He does not like to drink coffee.", "Er trinkt nicht gern Kaffee."),
    (states("the bicycle", "belong to", PRESENT, to_whom="my brother"),
     "The bicycle belongs to my brother.", "Das Fahrrad gehört meinem Bruder."),
    (states("it", "rain", PAST, late=Phrase("in Rome", "in Rom"), when="last Friday", first="time"),
     "Last Friday it rained in Rome.", "Letzten Freitag hat es in Rom geregnet."),
    # Questions
    (asks("the teacher", "buy", PRESENT, what="the apples"),
     "Does the teacher buy the apples?", "Kauft der Lehrer die Äpfel?"),
    (asks("you", "see", PAST, what="the new film"), "Did you see the new film?", "Hast du den neuen Film gesehen?"),
    (asks("the guests", "be", IS_NOW, late=Phrase("hungry", "hungrig")),
     "Are the guests hungry?", "Sind die Gäste hungrig?"),
    (asks("she", "buy", PRESENT, late=at("at the market"), word=("what", "was")),
     "What does she buy at the market?", "Was kauft sie auf dem Markt?"),
    (asks("the boy", "go", PAST, word=("where", "wohin")), "Where did the boy go?", "Wohin ist der Junge gegangen?"),
    (asks("you", "live", PRESENT, word=("where", "wo")), "Where do you live?", "Wo wohnst du?"),
    (asks("the doctor", "help", PROGRESSIVE, word=("whom", "wem")),
     "Whom is the doctor helping?", "Wem hilft der Arzt gerade?"),
    (asks("they", "come back", FUTURE, word=("when", "wann")),
     "When will they come back?", "Wann werden sie zurückkommen?"),
    (asks("the cow", "eat", PRESENT, word=("how many apples", who("how many apples").german[ACCUSATIVE])),
     "How many apples does the cow eat?", "Wie viele Äpfel isst die Kuh?"),
    (asks("you", "read", PROGRESSIVE, word=("which novel", who("which novel").german[ACCUSATIVE])),
     "Which novel are you reading?", "Welchen Roman liest du gerade?"),
    # Subordinate clauses
    (joins(clause("we", "stay", PRESENT, late=Phrase("at home", "zu Hause")), ("because", "weil"),
           clause("it", "rain", PROGRESSIVE)),
     "We stay at home because it is raining.", "Wir bleiben zu Hause, weil es gerade regnet."),
    (joins(clause("he", "laugh", PAST), ("although", "obwohl"),
           clause("he", "be", WAS_THEN, late=Phrase("sad", "traurig"))),
     "He laughed although he was sad.", "Er hat gelacht, obwohl er traurig war."),
    (joins(clause("the queen", "say", PRESENT), ("that", "dass"),
           clause("the guests", "arrive", FUTURE, when="tomorrow")),
     "The queen says that the guests will arrive tomorrow.",
     "Die Königin sagt, dass die Gäste morgen ankommen werden."),
    (joins(clause("I", "hope", PRESENT), ("that", "dass"),
           clause("you", "take along", PRESENT, what="an umbrella")),
     "I hope that you take along an umbrella.", "Ich hoffe, dass du einen Regenschirm mitnimmst."),
    (joins(clause("the boy", "ask", PAST), ("whether", "ob"), clause("we", "buy", PAST, what="any bread", no=True)),
     "The boy asked whether we did not buy any bread.", "Der Junge hat gefragt, ob wir kein Brot gekauft haben."),
    (joins(clause("the girl", "find out", PRESENT), ("where", "wo"), clause("the cat", "sleep", PRESENT)),
     "The girl finds out where the cat sleeps.", "Das Mädchen findet heraus, wo die Katze schläft."),
    (joins(clause("you", "sleep", PAST), ("while", "während"), clause("I", "cook", PAST, what="the soup")),
     "You slept while I cooked the soup.", "Du hast geschlafen, während ich die Suppe gekocht habe."),
]  # fmt: skip


@pytest.mark.parametrize(("made", "english", "german"), GOLDEN, ids=[english for _, english, _ in GOLDEN])
def test_a_sentence_and_its_translation(made: tuple[str, str], english: str, german: str) -> None:
    assert made == (english, german)


def test_a_subordinate_clause_first_is_the_first_part_of_the_sentence() -> None:
    main = clause("the children", "play", FUTURE, late=Phrase("at home", "zu Hause"))
    front = german_subordinate(clause("it", "rain", PRESENT), "wenn") + ","
    assert german_main(main, front) == "wenn es regnet, werden die Kinder zu Hause spielen"


def test_infinitives_take_zu_between_prefix_and_verb() -> None:
    shopping = clause("he", "shop", FUTURE, late=at("at the market"))
    assert english_predicate(shopping, "to {base}") == "to shop at the market"
    assert german_infinitive(shopping) == "auf dem Markt einzukaufen"
    assert german_infinitive(clause("he", "read", FUTURE, what="the letter")) == "den Brief zu lesen"


@pytest.mark.parametrize(
    ("head", "german"),
    [
        ("the man", "der das Brot kauft"), ("the woman", "die das Brot kauft"), ("the girl", "das das Brot kauft"),
        ("the men", "die das Brot kaufen"),
    ],
)  # fmt: skip
def test_a_relative_pronoun_agrees_with_its_noun(head: str, german: str) -> None:
    inner = clause(head, "buy", PRESENT, what="the bread")
    pronoun = RELATIVE[NOMINATIVE][who(head).gender]
    assert german_subordinate(inner, pronoun, with_subject=False) == german


def test_who_asks_in_the_third_person() -> None:
    made = clause("who", "invite", PAST, what="the lawyers")
    assert (english_who(made), german_main(made)) == ("invited the lawyers", "wer hat die Anwälte eingeladen")


def test_there_is_takes_the_accusative() -> None:
    where = at("in the park")
    assert existence(who("no lion"), where, is_past=False, place_first=False) == (
        "there is no lion in the park", "im Park gibt es keinen Löwen",
    )  # fmt: skip
    assert existence(who("two small birds"), where, is_past=True, place_first=True) == (
        "in the park there were two small birds", "im Park gab es zwei kleine Vögel",
    )  # fmt: skip


def test_a_profession_has_an_article_only_with_an_adjective_and_a_word_for_women() -> None:
    doctor = NOUNS["doctor"][0]
    good = (ADJECTIVES["good"],)
    assert phrases.profession_phrase(doctor).german == "Arzt"
    assert phrases.profession_phrase(doctor, good).german == "ein guter Arzt"
    woman = LEXICON.woman_of(doctor)
    assert phrases.profession_phrase(woman).german == "Ärztin"
    assert phrases.profession_phrase(woman, good).german == "eine gute Ärztin"
    assert phrases.profession_phrase(woman).english == "a doctor"


# Forms, against tables as grammar books print them: masculine, feminine, neuter, plural by case

DECLENSION = {
    "the": """
        der alte Hut | die alte Lampe | das alte Buch | die alten Bücher
        den alten Hut | die alte Lampe | das alte Buch | die alten Bücher
        dem alten Hut | der alten Lampe | dem alten Buch | den alten Büchern
    """,
    "my": """
        mein alter Hut | meine alte Lampe | mein altes Buch | meine alten Bücher
        meinen alten Hut | meine alte Lampe | mein altes Buch | meine alten Bücher
        meinem alten Hut | meiner alten Lampe | meinem alten Buch | meinen alten Büchern
    """,
    "no": """
        kein alter Hut | keine alte Lampe | kein altes Buch | keine alten Bücher
        keinen alten Hut | keine alte Lampe | kein altes Buch | keine alten Bücher
        keinem alten Hut | keiner alten Lampe | keinem alten Buch | keinen alten Büchern
    """,
    "which": """
        welcher alte Hut | welche alte Lampe | welches alte Buch | welche alten Bücher
        welchen alten Hut | welche alte Lampe | welches alte Buch | welche alten Bücher
        welchem alten Hut | welcher alten Lampe | welchem alten Buch | welchen alten Büchern
    """,
    "Anna's": """
        Annas alter Hut | Annas alte Lampe | Annas altes Buch | Annas alte Bücher
        Annas alten Hut | Annas alte Lampe | Annas altes Buch | Annas alte Bücher
        Annas altem Hut | Annas alter Lampe | Annas altem Buch | Annas alten Büchern
    """,
}


@pytest.mark.parametrize("determiner", DECLENSION)
def test_declension(determiner: str) -> None:
    rows = [[form.strip() for form in line.split("|")] for line in DECLENSION[determiner].strip().splitlines()]
    columns = [who(f"{determiner} old {noun}") for noun in ("hat", "lamp", "book", "books")]
    assert [[column.german[case] for column in columns] for case in (NOMINATIVE, ACCUSATIVE, DATIVE)] == rows


@pytest.mark.parametrize(
    ("english", "forms"),
    [
        ("cold milk", "kalte Milch|kalte Milch|kalter Milch"),
        ("cold juice", "kalter Saft|kalten Saft|kaltem Saft"),
        ("cold water", "kaltes Wasser|kaltes Wasser|kaltem Wasser"),
        ("many old hats", "viele alte Hüte|viele alte Hüte|vielen alten Hüten"),
        ("all old hats", "alle alten Hüte|alle alten Hüte|allen alten Hüten"),
        ("five old hats", "fünf alte Hüte|fünf alte Hüte|fünf alten Hüten"),
        ("our old car", "unser altes Auto|unser altes Auto|unserem alten Auto"),
        ("this neighbour", "dieser Nachbar|diesen Nachbarn|diesem Nachbarn"),
        ("an expensive camera", "eine teure Kamera|eine teure Kamera|einer teuren Kamera"),
        ("the high mountain", "der hohe Berg|den hohen Berg|dem hohen Berg"),
        ("the cameras", "die Kameras|die Kameras|den Kameras"),
        ("the dark room", "das dunkle Zimmer|das dunkle Zimmer|dem dunklen Zimmer"),
    ],
)  # fmt: skip
def test_noun_phrases_in_three_cases(english: str, forms: str) -> None:
    assert who(english).german == tuple(forms.split("|"))


@pytest.mark.parametrize(
    ("infinitive", "changed", "participle", "forms", "expected"),
    [
        ("kaufen", None, None, "kaufe kaufst kauft kaufen kaufen", "gekauft"),
        ("arbeiten", None, None, "arbeite arbeitest arbeitet arbeiten arbeiten", "gearbeitet"),
        ("öffnen", None, None, "öffne öffnest öffnet öffnen öffnen", "geöffnet"),
        ("zeichnen", None, None, "zeichne zeichnest zeichnet zeichnen zeichnen", "gezeichnet"),
        ("lernen", None, None, "lerne lernst lernt lernen lernen", "gelernt"),
        ("wohnen", None, None, "wohne wohnst wohnt wohnen wohnen", "gewohnt"),
        ("tanzen", None, None, "tanze tanzt tanzt tanzen tanzen", "getanzt"),
        ("sammeln", None, None, "sammle sammelst sammelt sammeln sammeln", "gesammelt"),
        ("wandern", None, "ist_gewandert", "wandere wanderst wandert wandern wandern", "gewandert"),
        ("reparieren", None, None, "repariere reparierst repariert reparieren reparieren", "repariert"),
        ("besuchen", None, None, "besuche besuchst besucht besuchen besuchen", "besucht"),
        ("lesen", "lies", "gelesen", "lese liest liest lesen lesen", "gelesen"),
        ("halten", "hält", "gehalten", "halte hältst hält halten halten", "gehalten"),
        ("auf|räumen", None, None, "räume räumst räumt räumen räumen", "aufgeräumt"),
        ("ein|laden", "läd", "eingeladen", "lade lädst lädt laden laden", "eingeladen"),
    ],
)
def test_german_verbs(infinitive: str, changed: str | None, participle: str | None, forms: str, expected: str) -> None:
    made = german_verb(infinitive, changed, participle)
    assert made.present == tuple(forms.split())
    assert made.participle == expected
    assert made.auxiliary[2] == ("ist" if participle and participle.startswith("ist_") else "hat")


@pytest.mark.parametrize(
    ("base", "forms"),
    [
        ("carry", "carries carried carrying"), ("play", "plays played playing"), ("shop", "shops shopped shopping"),
        ("visit", "visits visited visiting"), ("dance", "dances danced dancing"), ("wash", "washes washed washing"),
        ("cook", "cooks cooked cooking"), ("show", "shows showed showing"), ("plan", "plans planned planning"),
    ],
)  # fmt: skip
def test_english_verbs(base: str, forms: str) -> None:
    made = english_verb(base)
    assert [made.third, made.past, made.ing] == forms.split()


def test_english_plurals_and_articles() -> None:
    assert [english_plural(word) for word in ("box", "cherry", "boy", "church", "tomato", "horse")] == [
        "boxes", "cherries", "boys", "churches", "tomatoes", "horses",
    ]  # fmt: skip
    assert [phrases.a_or_an(word) for word in ("apple", "old man", "book", "uniform")] == ["an", "an", "a", "a"]


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (2, "two", "zwei"), (12, "twelve", "zwölf"), (16, "sixteen", "sechzehn"), (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"), (21, "twenty-one", "einundzwanzig"), (30, "thirty", "dreißig"),
        (47, "forty-seven", "siebenundvierzig"), (66, "sixty-six", "sechsundsechzig"),
        (71, "seventy-one", "einundsiebzig"),
        (99, "ninety-nine", "neunundneunzig"),
    ],
)  # fmt: skip
def test_numbers(number: int, english: str, german: str) -> None:
    assert (english_number(number), german_number(number)) == (english, german)


# What is drawn


@pytest.fixture(scope="module")
def samples() -> list[SentencePair]:
    grammar, random = Grammar(), Random(0)
    return [grammar.pair(random) for _ in range(NUM_SAMPLES)]


@pytest.mark.slow
def test_the_german_is_a_function_of_the_english(samples: list[SentencePair]) -> None:
    translations: dict[str, str] = {}
    for english, german, _ in samples:
        assert translations.setdefault(english, german) == german, english
    assert len(translations) > NUM_SAMPLES * 0.8


@pytest.mark.slow
def test_the_same_numbers_draw_the_same_sentences(samples: list[SentencePair]) -> None:
    grammar, random = Grammar(), Random(0)
    assert [grammar.pair(random) for _ in range(1000)] == samples[:1000]


@pytest.mark.slow
def test_sentences_are_whole(samples: list[SentencePair]) -> None:
    for english, german, pattern in samples:
        for text in (english, german):
            assert text[0].isupper() and text[-1] in ".?" and text[-2].isalpha(), text
            assert not any(wrong in text for wrong in ("  ", " ,", ",,", "{", "_", "|", "/")), text
        assert (english[-1] == "?") == (german[-1] == "?") == (pattern in ("yes-no question", "question word")) or (
            pattern in ("possession", "origin", "position", "placement", "liking")
        ), (english, german)
        assert 2 <= len(english.split()) <= 30, english


@pytest.mark.slow
def test_every_pattern_and_every_word_is_drawn(samples: list[SentencePair]) -> None:
    assert set(Grammar().patterns) == {pattern for _, _, pattern in samples}
    english = " ".join(english.lower().replace(",", "").rstrip(".?") for english, _, _ in samples)
    text = f" {english} ".replace(" not ", " ")
    missing = [noun.english for noun in LEXICON.nouns if not any(f" {form} " in text for form in noun.english)]
    missing += [each.english for each in ADJECTIVES.values() if f" {each.english} " not in text]
    missing += [each for each in LEXICON.women + LEXICON.men if f" {each.lower()} " not in text]
    missing += [each.english for each in TIMES.values() if f"{each.english.lower()} " not in text]
    for each in VERBS:
        forms = (each.english.base, each.english.third, each.english.past, each.english.ing)
        if each.english.base != "be" and not any(f" {form.lower()} " in text for form in forms):
            missing.append(each.english.base)
    assert missing == []


def test_words_have_one_meaning_each() -> None:
    """Two entries of one English word would give one sentence two translations, and be counted twice."""
    nouns = [form for noun in LEXICON.nouns for form in set(noun.english)]
    adjectives = [adjective.english for adjective in LEXICON.adjectives + LEXICON.colours]
    assert [word for word, count in Counter(nouns + adjectives + list(DETERMINERS)).items() if count > 1] == []
    finite = {verb.english.past.split()[0] for verb in LEXICON.transitive}
    words = {word for text in nouns + adjectives + list(DETERMINERS) for word in text.split()}
    assert finite & words == set()


def test_there_are_enough_sentences() -> None:
    grammar = Grammar()
    assert grammar.count_sentences() >= 10**8


def test_the_count_is_that_of_different_phrases() -> None:
    """What is counted for one noun, by drawing; the rarest phrase is missed with a chance of exp(-25)."""
    grammar, random = Grammar(), Random(1)
    noun: Noun = NOUNS["drawer"][0]
    counted = grammar._count_phrases(noun, is_object=True, plural=None)
    drawn = {grammar._phrase(random, (noun,), is_object=True).english for _ in range(40_000)}
    large = tuple(f"{english_number(number)} " for number in range(13, 100))
    beyond = {"very"} | {colour.english for colour in LEXICON.colours}
    small = {
        each for each in drawn if not each.startswith(large) and "'s" not in each and not beyond & set(each.split())
    }
    assert len(small) == counted


# The source


def test_texts_carry_their_pattern_and_their_german() -> None:
    texts = list(GrammarPairs(split="held_out", size=20, seed=3).texts())
    assert [text.name for text in texts] == [f"held_out:{number}" for number in range(1, 21)]
    assert len({text.text for text in texts}) == 20
    patterns = set(Grammar().patterns)
    assert all(text.category in patterns and text.reference for text in texts)
    assert texts == list(GrammarPairs(split="held_out", size=20, seed=3).texts())
    assert texts != list(GrammarPairs(split="held_out", size=20, seed=4).texts())


def test_a_text_of_another_source_has_no_reference() -> None:
    assert Text("name", "category", "text").reference is None


def test_the_splits_share_no_sentence(samples: list[SentencePair]) -> None:
    held_out = {text.text for text in GrammarPairs(split="held_out", size=50, seed=0).texts()}
    train = {text.text for text in GrammarPairs(split="train", size=500, seed=0).texts()}
    assert all(is_held_out(english) for english in held_out)
    assert not any(is_held_out(english) for english in train)
    different = {english for english, _, _ in samples}
    share = sum(map(is_held_out, different)) / len(different)
    # Six standard deviations of so many coins: a false alarm has a chance below 1e-8.
    assert abs(share - 1 / HELD_OUT_SHARE) < 6 * (0.02 * 0.98 / len(different)) ** 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, r"^split is 'test'; allowed: held_out, train"),
        ({"size": 0}, r"^size is 0; allowed: a whole number >= 1"),
    ],
)
def test_wrong_settings_name_their_key(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrammarPairs(**({"split": "train", "size": 1, "seed": 0} | settings))
