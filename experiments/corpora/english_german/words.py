"""Word tables: every noun, adjective and verb with its irregular forms and the words that it combines with.

Columns are separated by spaces, and lists by commas; - means none, _ a space.
"""

# Groups of classes of nouns and places that are used together.
GROUPS = """
edible   food,dish,drink
goods    thing,clothes,vehicle,furniture
living   person,animal
sized    animal,food,thing,vehicle,transport,furniture,room,building,landscape,plant,opened
visible  transport,seen,building,film
indoors  work,quiet,eating,town,culture
distant  work,shop,stop,stay,sight,settled
"""

# English (with an irregular plural), gender (* if all cases except the nominative have -n), German, plural, classes.
NOUNS = """
teacher              m   Lehrer            Lehrer             person,profession
doctor               m   Arzt              Ärzte              person,profession
student              m*  Student           Studenten          person,profession
farmer               m*  Bauer             Bauern             person,profession
baker                m   Bäcker            Bäcker             person,profession
chef                 m   Koch              Köche              person,profession
singer               m   Sänger            Sänger             person,profession
painter              m   Maler             Maler              person,profession
gardener             m   Gärtner           Gärtner            person,profession
lawyer               m   Anwalt            Anwälte            person,profession
waiter               m   Kellner           Kellner            person
journalist           m*  Journalist        Journalisten       person,profession
judge                m   Richter           Richter            person,profession
pilot                m*  Pilot             Piloten            person,profession
writer               m   Schriftsteller    Schriftsteller     person,profession
engineer             m   Ingenieur         Ingenieure         person,profession
dentist              m   Zahnarzt          Zahnärzte          person,profession
butcher              m   Metzger           Metzger            person,profession
nurse                f   Krankenschwester  Krankenschwestern  person
policeman/policemen  m*  Polizist          Polizisten         person
fisherman/fishermen  m   Fischer           Fischer            person
tourist              m*  Tourist           Touristen          person
king                 m   König             Könige             person
queen                f   Königin           Königinnen         person
prince               m*  Prinz             Prinzen            person
princess             f   Prinzessin        Prinzessinnen      person
customer             m*  Kunde             Kunden             person
guest                m   Gast              Gäste              person
man/men              m   Mann              Männer             person
woman/women          f   Frau              Frauen             person
child/children       n   Kind              Kinder             person
boy                  m*  Junge             Jungen             person
girl                 n   Mädchen           Mädchen            person
neighbour            m*  Nachbar           Nachbarn           person
friend               m   Freund            Freunde            person
colleague            m*  Kollege           Kollegen           person
mother               f   Mutter            Mütter             person,kin
father               m   Vater             Väter              person,kin
brother              m   Bruder            Brüder             person,kin
sister               f   Schwester         Schwestern         person,kin
son                  m   Sohn              Söhne              person,kin
daughter             f   Tochter           Töchter            person,kin
uncle                m   Onkel             Onkel              person,kin
aunt                 f   Tante             Tanten             person,kin
grandmother          f   Großmutter        Großmütter         person,kin
grandfather          m   Großvater         Großväter          person,kin
dog                  m   Hund              Hunde              animal,pet
cat                  f   Katze             Katzen             animal,pet
rabbit               n   Kaninchen         Kaninchen          animal,pet
horse                n   Pferd             Pferde             animal,pet,farmed
donkey               m   Esel              Esel               animal,pet,farmed
cow                  f   Kuh               Kühe               animal,farmed
pig                  n   Schwein           Schweine           animal,farmed
goat                 f   Ziege             Ziegen             animal,farmed
chicken              n   Huhn              Hühner             animal,farmed
duck                 f   Ente              Enten              animal,farmed
bird                 m   Vogel             Vögel              animal,small_animal
mouse/mice           f   Maus              Mäuse              animal,small_animal
frog                 m   Frosch            Frösche            animal,small_animal
spider               f   Spinne            Spinnen            animal,small_animal
snake                f   Schlange          Schlangen          animal,wild
lion                 m*  Löwe              Löwen              animal,wild
tiger                m   Tiger             Tiger              animal,wild
bear                 m*  Bär               Bären              animal,wild
wolf/wolves          m   Wolf              Wölfe              animal,wild
fox                  m   Fuchs             Füchse             animal,wild
elephant             m*  Elefant           Elefanten          animal,wild
monkey               m*  Affe              Affen              animal,wild
apple                m   Apfel             Äpfel              food,fruit
pear                 f   Birne             Birnen             food,fruit
banana               f   Banane            Bananen            food,fruit
cherry               f   Kirsche           Kirschen           food,fruit
strawberry           f   Erdbeere          Erdbeeren          food,fruit
plum                 f   Pflaume           Pflaumen           food,fruit
peach                m   Pfirsich          Pfirsiche          food,fruit
lemon                f   Zitrone           Zitronen           food,fruit
tomato               f   Tomate            Tomaten            food,fruit
potato               f   Kartoffel         Kartoffeln         food,cooked
carrot               f   Karotte           Karotten           food,cooked
onion                f   Zwiebel           Zwiebeln           food
cucumber             f   Gurke             Gurken             food
mushroom             m   Pilz              Pilze              food,cooked,gathered
egg                  n   Ei                Eier               food,cooked
sausage              f   Wurst             Würste             food
cake                 m   Kuchen            Kuchen             food,baked
pancake              m   Pfannkuchen       Pfannkuchen        food,baked
bread_roll           n   Brötchen          Brötchen           food,baked
biscuit              m   Keks              Kekse              food,baked
bread                n   Brot              -                  dish,baked
cheese               m   Käse              -                  dish
butter               f   Butter            -                  dish
rice                 m   Reis              -                  dish,cooked
meat                 n   Fleisch           -                  dish,cooked
soup                 f   Suppe             -                  dish,cooked
fish                 m   Fisch             -                  dish,cooked
ham                  m   Schinken          -                  dish
honey                m   Honig             -                  dish
chocolate            f   Schokolade        -                  dish
fruit                n   Obst              -                  dish
water                n   Wasser            -                  drink
milk                 f   Milch             -                  drink
coffee               m   Kaffee            -                  drink
tea                  m   Tee               -                  drink
juice                m   Saft              -                  drink
beer                 n   Bier              -                  drink
wine                 m   Wein              -                  drink
lemonade             f   Limonade          -                  drink
book                 n   Buch              Bücher             reading,written,flat,offered
letter               m   Brief             Briefe             reading,written,flat,posted
newspaper            f   Zeitung           Zeitungen          reading,flat
magazine             f   Zeitschrift       Zeitschriften      reading,flat
poem                 n   Gedicht           Gedichte           reading,written,learnt
novel                m   Roman             Romane             reading,written
message              f   Nachricht         Nachrichten        reading,written,posted
story                f   Geschichte        Geschichten        reading,written,tale
fairy_tale           n   Märchen           Märchen            reading,written,tale
article              m   Artikel           Artikel            reading,written
report               m   Bericht           Berichte           reading,written
postcard             f   Postkarte         Postkarten         reading,written,flat,posted,gathered
recipe               n   Rezept            Rezepte            reading,written
joke                 m   Witz              Witze              tale
key                  m   Schlüssel         Schlüssel          thing,lost,flat
ring                 m   Ring              Ringe              thing,lost,flat
coin                 f   Münze             Münzen             thing,lost,flat,gathered
ticket               f   Fahrkarte         Fahrkarten         thing,lost,flat
umbrella             m   Regenschirm       Regenschirme       thing,lost
pen                  m   Stift             Stifte             thing,lost,flat,tool
pencil               m   Bleistift         Bleistifte         thing,lost,flat,tool
ball                 m   Ball              Bälle              thing,toy
doll                 f   Puppe             Puppen             thing,toy
knife/knives         n   Messer            Messer             thing,flat,tool
fork                 f   Gabel             Gabeln             thing,flat,tool
spoon                m   Löffel            Löffel             thing,flat,tool
hammer               m   Hammer            Hämmer             thing,flat,tool
ladder               f   Leiter            Leitern            thing,tool,heavy
stone                m   Stein             Steine             thing,heavy,gathered
blanket              f   Decke             Decken             thing,flat
pillow               n   Kissen            Kissen             thing,flat
towel                n   Handtuch          Handtücher         thing,flat
candle               f   Kerze             Kerzen             thing,upright
vase                 f   Vase              Vasen              thing,upright,fragile,vessel
cup                  f   Tasse             Tassen             thing,upright,fragile,vessel
glass                n   Glas              Gläser             thing,upright,fragile,vessel
plate                m   Teller            Teller             thing,upright,fragile,vessel
bottle               f   Flasche           Flaschen           thing,upright,fragile,opened,vessel
pot                  m   Topf              Töpfe              thing,upright,vessel
mirror               m   Spiegel           Spiegel            thing,cleaned,fragile
picture              n   Bild              Bilder             thing,seen,offered
present              n   Geschenk          Geschenke          thing,packed,posted,hidden
basket               m   Korb              Körbe              thing,upright,carried,vessel
suitcase             m   Koffer            Koffer             thing,upright,opened,packed,carried,heavy,vessel
bag                  f   Tasche            Taschen            thing,opened,packed,carried,vessel
box                  f   Kiste             Kisten             thing,opened,packed,carried,heavy,vessel
flower               f   Blume             Blumen             plant,seen,offered,blossom
rose                 f   Rose              Rosen              plant,seen,offered,blossom
lamp                 f   Lampe             Lampen             thing,device,upright
clock                f   Uhr               Uhren              thing,device
camera               f   Kamera            Kameras            thing,device
computer             m   Computer          Computer           thing,device
radio/radios         n   Radio             Radios             thing,device
telephone            n   Telefon           Telefone           thing,device
guitar               f   Gitarre           Gitarren           thing,instrument
violin               f   Geige             Geigen             thing,instrument
flute                f   Flöte             Flöten             thing,instrument
piano/pianos         n   Klavier           Klaviere           furniture,instrument
shirt                n   Hemd              Hemden             clothes,garment
dress                n   Kleid             Kleider            clothes,garment
coat                 m   Mantel            Mäntel             clothes,garment
jacket               f   Jacke             Jacken             clothes,garment
skirt                m   Rock              Röcke              clothes,garment
sweater              m   Pullover          Pullover           clothes,garment
blouse               f   Bluse             Blusen             clothes,garment
suit                 m   Anzug             Anzüge             clothes,garment
hat                  m   Hut               Hüte               clothes
cap                  f   Mütze             Mützen             clothes
scarf/scarves        m   Schal             Schals             clothes
belt                 m   Gürtel            Gürtel             clothes
car                  n   Auto              Autos              vehicle
bicycle              n   Fahrrad           Fahrräder          vehicle
taxi                 n   Taxi              Taxis              vehicle,public_transport
lorry                m   Lastwagen         Lastwagen          vehicle
motorbike            n   Motorrad          Motorräder         vehicle
bus                  m   Bus               Busse              vehicle,public_transport
train                m   Zug               Züge               transport,public_transport
ship                 n   Schiff            Schiffe            transport,public_transport,built
boat                 n   Boot              Boote              transport,built
plane                n   Flugzeug          Flugzeuge          transport
table                m   Tisch             Tische             furniture,cleaned
desk                 m   Schreibtisch      Schreibtische      furniture,cleaned
chair                m   Stuhl             Stühle             furniture
armchair             m   Sessel            Sessel             furniture
sofa                 n   Sofa              Sofas              furniture
bed                  n   Bett              Betten             furniture
bench                f   Bank              Bänke              furniture,outdoors
shelf/shelves        n   Regal             Regale             furniture
cupboard             m   Schrank           Schränke           furniture,opened
drawer               f   Schublade         Schubladen         opened
door                 f   Tür               Türen              opened,cleaned,knocked
window               n   Fenster           Fenster            opened,cleaned,knocked
gate                 n   Tor               Tore               opened,knocked
tree                 m   Baum              Bäume              plant,seen,outdoors
tower                m   Turm              Türme              building,seen,built,mountain
mountain             m   Berg              Berge              landscape,seen,mountain
star                 m   Stern             Sterne             counted
song                 n   Lied              Lieder             music,learnt
film                 m   Film              Filme              film
word                 n   Wort              Wörter             thought,text,learnt
sentence             m   Satz              Sätze              thought,text
question             f   Frage             Fragen             thought
answer               f   Antwort           Antworten          thought
rule                 f   Regel             Regeln             thought
problem              n   Problem           Probleme           thought,solved
task                 f   Aufgabe           Aufgaben           thought,solved
mistake              m   Fehler            Fehler             corrected
race                 n   Rennen            Rennen             event
competition          m   Wettbewerb        Wettbewerbe        event
course               m   Kurs              Kurse              event
meeting              f   Sitzung           Sitzungen          event
"""

# As NOUNS, with prepositions of location (English:German, the German one with the dative) and direction, and tags of
# activities, before the classes.
PLACES = """
garden       m  Garten       Gärten         in:in   into:in  home,out,garden,growing      landscape
park         m  Park         Parks          in:in   to:in    out,quiet,growing            landscape
forest       m  Wald         Wälder         in:in   into:in  out,growing                  landscape
beach        m  Strand       Strände        on:an   to:an    out                          landscape
lake         m  See          Seen           at:an   to:zu    out                          landscape
lake         m  See          Seen           in:in   into:in  water                        -
river        m  Fluss        Flüsse         in:in   into:in  water                        landscape
sea          n  Meer         Meere          in:in   into:in  water                        landscape
pool         n  Schwimmbad   Schwimmbäder   in:in   to:in    water                        building
kitchen      f  Küche        Küchen         in:in   into:in  home,eating,room             room
room         n  Zimmer       Zimmer         in:in   into:in  home,room                    room
cellar       m  Keller       Keller         in:in   into:in  room                         room
house        n  Haus         Häuser         in:in   into:in  home,lived_in                building,built,left
hut          f  Hütte        Hütten         in:in   into:in  lived_in                     building,built,left
castle       n  Schloss      Schlösser      in:in   to:zu    lived_in,sight               building,seen,left
office       n  Büro         Büros          in:in   to:in    work,room                    room,left
factory      f  Fabrik       Fabriken       in:in   to:in    work                         building,built,left
farm         m  Bauernhof    Bauernhöfe     on:auf  to:auf   work,farm                    building
hospital     n  Krankenhaus  Krankenhäuser  in:in   to:in    work                         building,built,left
library      f  Bibliothek   Bibliotheken   in:in   to:in    quiet,town                   building,left
school       f  Schule       Schulen        in:in   to:in    quiet                        building,built,left
restaurant   n  Restaurant   Restaurants    in:in   to:in    eating,work,town,restaurant  building,left
hotel        n  Hotel        Hotels         in:in   to:in    stay,work,town               building,built,left
market       m  Markt        Märkte         at:auf  to:auf   shop                         -
supermarket  m  Supermarkt   Supermärkte    in:in   to:in    shop,town                    building,left
bakery       f  Bäckerei     Bäckereien     in:in   to:zu    town                         building
pharmacy     f  Apotheke     Apotheken      in:in   to:zu    town                         building
station      m  Bahnhof      Bahnhöfe       at:an   to:zu    stop                         building,built
airport      m  Flughafen    Flughäfen      at:an   to:zu    stop                         building
harbour      m  Hafen        Häfen          in:in   to:zu    stop                         building
cinema       n  Kino         Kinos          in:in   to:in    culture,town                 building
theatre      n  Theater      Theater        in:in   to:in    culture,town                 building,built
museum       n  Museum       Museen         in:in   to:in    culture,sight,town           building,seen
church       f  Kirche       Kirchen        in:in   to:in    sight,town                   building,seen,built
bridge       f  Brücke       Brücken        on:auf  to:zu    sight                        building,seen,built
village      n  Dorf         Dörfer         in:in   to:in    lived_in,settled             landscape,left
city         f  Stadt        Städte         in:in   to:in    lived_in,settled             landscape,left
island       f  Insel        Inseln         on:auf  to:auf   lived_in,stay                landscape,left
"""

# English, German (with its stem before an ending if irregular), comparatives (English: - for none; German: - for the
# regular one), classes.
ADJECTIVES = """
old           alt           older       älter       person,animal,reading,goods,transport,building,film,landscape
new           neu           newer       -           reading,goods,transport,building,film
young         jung          younger     jünger      person,animal
tall          groß          taller      größer      person
big           groß          bigger      größer      sized
small         klein         smaller     -           person,sized
beautiful     schön         more        -           person,animal,goods,transport,building,landscape,plant,music,film
ugly          hässlich      uglier      -           animal,thing,clothes,vehicle,furniture,building
good          gut           better      besser      profession,edible,reading,film,music,tool
bad           schlecht      worse       schlechter  edible,film,profession
expensive     teuer/teur    more        teurer      edible,goods
cheap         billig        cheaper     -           edible,goods
heavy         schwer        heavier     -           carried,heavy,furniture
light         leicht        lighter     -           carried
long          lang          longer      länger      reading,film,text,event
short         kurz          shorter     kürzer      reading,film,text,event
thick         dick          thicker     -           clothes
fresh         frisch        fresher     -           food,dish
sweet         süß           sweeter     -           fruit,baked
ripe          reif          riper       -           fruit
cold          kalt          colder      kälter      drink,room
warm          warm          warmer      wärmer      drink,room,clothes
hot           heiß          hotter      -           drink
clean         sauber        cleaner     -           clothes,vehicle,room,cleaned,vessel
dirty         schmutzig     dirtier     -           clothes,vehicle,room,cleaned,vessel,animal
strong        stark         stronger    stärker     person,animal
weak          schwach       weaker      schwächer   person,animal
tired         müde          -           -           person,animal
hungry        hungrig       hungrier    -           person,animal
thirsty       durstig       -           -           person,animal
friendly      freundlich    friendlier  -           person
polite        höflich       more        -           person
happy         glücklich     happier     -           person
sad           traurig       sadder      -           person,music,film
angry         wütend        angrier     -           person
clever        klug          cleverer    klüger      person,animal
famous        berühmt       more        -           profession,sight
rich          reich         richer      -           person
poor          arm           poorer      ärmer       person
brave         mutig         braver      -           person
lazy          faul          lazier      -           person,animal
hard-working  fleißig       more        -           person
ill           krank         -           -           person,animal
healthy       gesund        healthier   gesünder    person,animal
nice          nett          nicer       -           person
strict        streng        stricter    -           profession
patient       geduldig      more        -           person
quiet         ruhig         quieter     -           person,room,landscape
dangerous     gefährlich    more        -           wild
wild          wild          wilder      -           animal
fast          schnell       faster      -           vehicle,transport
slow          langsam       slower      -           vehicle,transport
interesting   interessant   more        -           reading,film,thought,event
boring        langweilig    more        -           reading,film,event
exciting      spannend      more        -           reading,film,event
funny         lustig        funnier     -           tale,film
strange       seltsam       stranger    -           thought,person,reading
important     wichtig       more        -           thought,person,event,posted
difficult     schwierig     more        -           thought,event
easy          einfach       easier      -           thought
modern        modern        more        -           furniture,building,device,room,vehicle
comfortable   bequem        more        -           furniture,garment
dark          dunkel/dunkl  darker      dunkler     room
bright        hell          brighter    -           room
high          hoch/hoh      higher      höher       mountain
round         rund          -           -           furniture,cleaned
empty         leer          -           -           vessel
broken        kaputt        -           -           device,vehicle,furniture,fragile,toy
"""

COLOURS = """
red     rot      -  -  thing,clothes,vehicle,fruit,furniture,opened
blue    blau     -  -  thing,clothes,vehicle,furniture,opened
green   grün     -  -  thing,clothes,vehicle,furniture,fruit,opened
yellow  gelb     -  -  thing,clothes,vehicle,furniture,plant
black   schwarz  -  -  clothes,vehicle,furniture,animal,thing
white   weiß     -  -  clothes,vehicle,furniture,animal,building,plant
brown   braun    -  -  clothes,furniture,animal
grey    grau     -  -  clothes,animal,building,vehicle
"""

# English (base/past/-ing if irregular), German, stem of du and er, participle, objects, places, remarks: animals
# (possible subjects), manner (takes adverbs of manner), together (done with others), singular or plural (number of its
# objects), stative (no -ing form).
TRANSITIVE = """
buy/bought                 kaufen         -         -             edible,goods,reading,blossom  shop  -
sell/sold                  verkaufen      -         -             edible,goods,reading,blossom  shop  -
need                       brauchen       -         -             thing,clothes,vehicle  -  stative
have/had                   haben          -         gehabt        pet,thing,vehicle,reading,clothes  -  stative
love                       lieben         -         -             person,pet,music  -  stative
read/read                  lesen          lies      gelesen       reading  quiet,home  -
write/wrote                schreiben      -         geschrieben   written  quiet,home  -
translate                  übersetzen     -         übersetzt     written,text  -  -
eat/ate                    essen          iss       gegessen      food,dish  eating  animals
drink/drank                trinken        -         getrunken     drink  eating  animals
cook                       kochen         -         -             cooked  eating  -
bake                       backen         bäck      gebacken      baked  eating  -
cut/cut                    schneiden      -         geschnitten   food  eating  manner
order                      bestellen      -         -             edible  restaurant  -
pay_for/paid_for           bezahlen       -         -             food,drink,thing,clothes  -  -
wash                       waschen        wäsch     gewaschen     garment,vehicle  -  manner
clean                      putzen         -         -             cleaned  -  -
repair                     reparieren     -         -             vehicle,device,furniture,toy  -  manner
build/built                bauen          -         -             built  -  -
see/saw                    sehen          sieh      gesehen       living,visible  -  stative,animals
hear/heard                 hören          -         -             person,animal,music  -  stative
find/found                 finden         -         gefunden      thing,clothes,pet  home,out  -
lose/lost                  verlieren      -         verloren      lost,clothes  out  -
look_for                   suchen         -         -             lost,clothes,person,pet  home,out  -
use                        benutzen       -         -             device,tool,vehicle  -  -
hold/held                  halten         hält      gehalten      thing  -  -
lift                       heben          -         gehoben       carried,heavy  -  manner
carry                      tragen         träg      getragen      carried,heavy,furniture  -  manner
wear/wore                  tragen         träg      getragen      clothes  -  singular
put_on/put_on/putting_on   an|ziehen      -         angezogen     garment  -  singular
try_on                     an|probieren   -         -             clothes  -  singular
open                       öffnen         -         -             opened,posted  -  manner
close                      schließen      -         geschlossen   opened  -  manner
break/broke                zerbrechen     zerbrich  zerbrochen    fragile  -  -
hide/hid                   verstecken     -         -             lost,hidden  garden,room  -
draw/drew                  zeichnen       -         -             person,animal,plant,building,seen  -  -
photograph                 fotografieren  -         -             person,animal,plant,building,seen  -  -
admire                     bewundern      -         -             person,building,seen  -  -
look_at                    an|schauen     -         -             animal,seen,building,clothes  -  -
visit                      besuchen       -         -             person,sight  -  -
meet/met                   treffen        triff     getroffen     person  shop,out,stop,culture,eating  -
know/knew                  kennen         -         gekannt       person,music,tale,sight  -  stative
ask                        fragen         -         -             person  -  -
greet                      grüßen         -         -             person  -  -
kiss                       küssen         -         -             kin  -  -
invite                     ein|laden      läd       eingeladen    person  -  -
call                       an|rufen       -         angerufen     person  -  -
pick_up                    ab|holen       -         -             person,posted  stop  -
wake/woke                  wecken         -         -             person  -  -
rescue                     retten         -         -             person,animal  -  -
teach/taught               unterrichten   -         unterrichtet  person  -  -
examine                    untersuchen    -         untersucht    person,pet,farmed  -  -
feed/fed                   füttern        -         -             animal  farm,garden  -
stroke                     streicheln     -         -             pet,farmed  -  -
catch/caught               fangen         fäng      gefangen      small_animal  garden  animals
chase                      jagen          -         -             small_animal  out  animals
plant                      pflanzen       -         -             plant  garden  -
collect                    sammeln        -         -             gathered  -  plural
count                      zählen         -         -             animal,gathered,counted  -  plural
turn_on                    ein|schalten   -         -             device  -  -
turn_off                   aus|schalten   -         -             device  -  -
take_along/took_along      mit|nehmen     nimm      mitgenommen   thing,clothes,food  -  -
bring_along/brought_along  mit|bringen    -         mitgebracht   food,dish,drink,offered  -  -
throw_away/threw_away      weg|werfen     wirf      weggeworfen   thing,clothes,reading  -  -
pack                       ein|packen     -         -             clothes,thing,reading  -  -
unpack                     aus|packen     -         -             packed  -  manner
tidy_up                    auf|räumen     -         -             room  -  -
enter                      betreten       betritt   betreten      room,left  -  -
leave/left                 verlassen      verläss   verlassen     room,left  -  -
sing/sang                  singen         -         gesungen      music  out,sight  -
learn                      lernen         -         -             learnt  quiet  -
repeat                     wiederholen    -         wiederholt    thought  -  -
understand/understood      verstehen      -         verstanden    thought,reading,person  -  stative
forget/forgot/forgetting   vergessen      vergiss   vergessen     thought,lost  -  -
solve                      lösen          -         -             solved  -  -
correct                    korrigieren    -         -             text,corrected  -  -
"""

# As TRANSITIVE, without objects; `placed` verbs always have a place.
INTRANSITIVE = """
sleep/slept                   schlafen       schläf  geschlafen          home,stay            animals
work                          arbeiten       -       -                   work,garden          manner
play                          spielen        -       -                   home,out             animals,together
dance                         tanzen         -       -                   out,home             together,manner
laugh                         lachen         -       -                   -                    -
cry                           weinen         -       -                   home                 -
smile                         lächeln        -       -                   -                    -
paint                         malen          -       -                   home,out             together,manner
study                         lernen         -       -                   quiet                together
celebrate                     feiern         -       -                   home,out,eating      together
whistle                       pfeifen        -       gepfiffen           -                    -
swim/swam                     schwimmen      -       ist_geschwommen     water                animals,together,manner
hike                          wandern        -       ist_gewandert       out                  together
wait                          warten         -       -                   stop,eating,work     animals
shop                          ein|kaufen     -       -                   shop,settled         together
watch_TV                      fern|sehen     sieh    ferngesehen         home                 together
get_up/got_up                 auf|stehen     -       ist_aufgestanden    -                    -
wake_up/woke_up               auf|wachen     -       ist_aufgewacht      -                    animals
fall_asleep/fell_asleep       ein|schlafen   schläf  ist_eingeschlafen   home                 animals
come_back/came_back           zurück|kommen  -       ist_zurückgekommen  -                    animals
arrive                        an|kommen      -       ist_angekommen      stop,settled,cities  -
have_breakfast/had_breakfast  frühstücken    -       -                   eating,home          together
live                          wohnen         -       -                   lived_in,cities        placed,stative
stay                          bleiben        -       ist_geblieben       home,stay,cities     placed
sit/sat                       sitzen         -       gesessen            home,out,eating      placed,animals
stand/stood                   stehen         -       gestanden           stop,sight           placed
"""

# As INTRANSITIVE; the places are destinations.
MOTION = """
go/went                      gehen          -     ist_gegangen       out,room,indoors,homewards  animals
run/ran                      laufen         läuf  ist_gelaufen       out,room,stop,homewards  animals
hurry                        eilen          -     ist_geeilt         work,stop,shop,town  -
come/came                    kommen         -     ist_gekommen       out,eating,shop,stop,settled  -
drive/drove                  fahren         fähr  ist_gefahren       distant,cities,homewards  -
travel/travelled/travelling  reisen         -     ist_gereist        cities,countries  -
fly/flew                     fliegen        -     ist_geflogen       cities,countries  -
return                       zurück|kehren  -     ist_zurückgekehrt  settled,cities,countries  -
move                         um|ziehen      -     ist_umgezogen      cities,countries  -
"""

# As TRANSITIVE; the dative is the English object, or the first of two objects.
DATIVE = """
help          helfen       hilf  geholfen     person         -  -
thank         danken       -     -            person         -  -
answer        antworten    -     -            person         -  -
follow        folgen       -     ist_gefolgt  person,animal  -  animals
trust         vertrauen    -     -            person         -  stative
congratulate  gratulieren  -     -            person         -  -
listen_to     zu|hören     -     -            person         -  -
"""

GIVING = """
give/gave      geben      gib  gegeben    offered,thing,food,reading  -  -
show/showed    zeigen     -    -          thing,reading,clothes,building  -  -
send/sent      schicken   -    -          posted,offered  -  -
lend/lent      leihen     -    geliehen   thing,reading,vehicle  -  -
bring/brought  bringen    -    gebracht   drink,food,thing,reading  -  -
tell/told      erzählen   -    -          tale  -  -
offer          an|bieten  -    angeboten  food,dish,drink  -  -
"""

# As TRANSITIVE; the remarks start with English:German:case of the preposition (3: dative, 4: accusative).
PREPOSITIONAL = """
wait                 warten       -       -             person,public_transport  stop        for:auf:4
think/thought        denken       -       gedacht       person,event             -           of:an:4
talk                 sprechen     sprich  gesprochen    person,film,event        -           about:über:4
laugh                lachen       -       -             tale                     -           at:über:4
dream                träumen      -       -             person,landscape,seen    -           of:von:3
play                 spielen      -       -             pet,toy,person           home,out    with:mit:3
dance                tanzen       -       -             person                   out         with:mit:3
talk                 sprechen     sprich  gesprochen    person                   out,eating  with:mit:3
live                 wohnen       -       -             kin                      -           with:bei:3,stative
work                 arbeiten     -       -             person                   -           for:für:4
write/wrote          schreiben    -       geschrieben   person                   -           to:an:4
fight/fought         kämpfen      -       -             person,wild              -           against:gegen:4
point                zeigen       -       -             thing,building,seen      -           to:auf:4
knock                klopfen      -       -             knocked                  -           on:an:4
take_part/took_part  teil|nehmen  nimm    teilgenommen  event                    -           in:an:3
"""

# Verbs of matrix clauses; the remarks are kinds of clauses that follow: that, whether, question, infinitive.
MATRIX = """
know/knew                 wissen         -          gewusst         that,question
say/said                  sagen          -          -               that
think/thought             denken         -          gedacht         that
believe                   glauben        -          -               that
hope                      hoffen         -          -               that,infinitive
hear/heard                hören          -          -               that
find_out/found_out        heraus|finden  -          herausgefunden  that,question
forget/forgot/forgetting  vergessen      vergiss    vergessen       that,question,infinitive
ask                       fragen         -          -               whether,question
see/saw                   sehen          sieh       gesehen         that
explain                   erklären       -          -               that,question
try                       versuchen      -          -               infinitive
begin/began/beginning     beginnen       -          begonnen        infinitive
promise                   versprechen    versprich  versprochen     infinitive
plan                      planen         -          -               infinitive
"""

# Verbs without classes, looked up by their English base form.
OTHER_VERBS = """
be/was         sein      -  ist_gewesen
belong_to      gehören   -  gehört
lie/lay/lying  liegen    -  gelegen
stand/stood    stehen    -  gestanden
lay/laid       legen     -  -
put/put        stellen   -  -
come/came      kommen    -  ist_gekommen
rain           regnen    -  -
snow           schneien  -  -
"""

# Prepositions of things relative to each noun: English location, English direction, German (dative or accusative).
SPOTS = """
table     on:on:auf  under:under:unter
desk      on:on:auf  under:under:unter
chair     on:on:auf  under:under:unter  behind:behind:hinter
armchair  on:on:auf  behind:behind:hinter
sofa      on:on:auf  next_to:next_to:neben
bed       on:on:auf  under:under:unter  next_to:next_to:neben
shelf     on:on:auf  in_front_of:in_front_of:vor
cupboard  in:into:in  behind:behind:hinter
drawer    in:into:in
box       in:into:in  next_to:next_to:neben
bag       in:into:in  next_to:next_to:neben
basket    in:into:in  behind:behind:hinter
suitcase  in:into:in  under:under:unter
bench     on:on:auf  under:under:unter
door      in_front_of:in_front_of:vor  behind:behind:hinter
window    in_front_of:in_front_of:vor
"""

WOMEN = "Anna Maria Lena Julia Emma Laura Clara Sophie"
MEN = "Peter Paul David Martin Jan Karl Michael Simon"
CITIES = (
    "Berlin:Berlin Hamburg:Hamburg Munich:München Cologne:Köln Vienna:Wien Zurich:Zürich Paris:Paris London:London "
    "Rome:Rom Prague:Prag Madrid:Madrid"
)
COUNTRIES = (
    "Germany:Deutschland Austria:Österreich Italy:Italien France:Frankreich Spain:Spanien Poland:Polen "
    "England:England Norway:Norwegen"
)
UMLAUT_OF_WOMEN = "Arzt:Ärztin Zahnarzt:Zahnärztin Koch:Köchin Anwalt:Anwältin Bauer:Bäuerin"
