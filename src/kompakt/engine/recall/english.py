"""What search knows of English: words that say nothing, forms that no ending explains, words that mean the same.

Small on purpose: everyday words and those of software work. Other languages are searched by their words as they stand.
"""

from __future__ import annotations

_STOP = (
    "a about above after again all also am an and any are as at be because been before being below between both "
    "but by can could did do does doing down during each few for from further get got had has have having he her "
    "here hers him his how i if in into is it its itself just me more most my no nor not now of off on once only "
    "or other our out over own s same she should so some such t than that the their them then there these they "
    "this those through to too under until up us very was we were what when where which while who whom why will "
    "with would you your yours d ll m re ve don didn doesn isn wasn"
)

STOP = frozenset(_STOP.split(" "))
"""Words that say nothing about what a text is about."""

_IRREGULAR = (
    "went:go gone:go bought:buy made:make took:take taken:take ran:run won:win gave:give given:give met:meet "
    "wrote:write written:write taught:teach began:begin begun:begin felt:feel thought:think children:child "
    "feet:foot saw:see seen:see came:come became:become knew:know known:know grew:grow grown:grow threw:throw "
    "thrown:throw flew:fly flown:fly drew:draw drawn:draw drove:drive driven:drive rode:ride ridden:ride "
    "rose:rise risen:rise chose:choose chosen:choose broke:break broken:break spoke:speak spoken:speak "
    "stole:steal stolen:steal woke:wake woken:wake wore:wear worn:wear tore:tear torn:tear swore:swear "
    "sworn:swear sang:sing sung:sing swam:swim swum:swim drank:drink drunk:drink sank:sink sunk:sink rang:ring "
    "rung:ring kept:keep slept:sleep left:leave lost:lose built:build sent:send spent:spend lent:lend bent:bend "
    "held:hold told:tell sold:sell found:find bound:bind wound:wind stood:stand understood:understand "
    "brought:bring caught:catch fought:fight sought:seek paid:pay said:say laid:lay heard:hear led:lead fed:feed "
    "ate:eat eaten:eat fell:fall fallen:fall forgot:forget forgotten:forget hid:hide hidden:hide bit:bite "
    "bitten:bite sat:sit hung:hang stuck:stick struck:strike dug:dig shot:shoot lit:light slid:slide meant:mean "
    "dealt:deal dreamt:dream learnt:learn burnt:burn lain:lie women:woman men:man people:person mice:mouse "
    "teeth:tooth wives:wife lives:life knives:knife leaves:leaf"
)

IRREGULAR = {form: word for form, _, word in (pair.partition(":") for pair in _IRREGULAR.split(" "))}
"""Past forms and plurals, and the word they belong to."""

_LIKE = (
    "kid child son daughter | movie film | picture photo image pic painting | job work career | trip travel "
    "vacation journey visit tour | book novel read | begin start launch | finish complete end | buy purchase get "
    "| big large huge | happy glad excited thrilled joy | sad upset down | sick ill | friend buddy pal | mom "
    "mother | dad father | grandma grandmother | grandpa grandfather | house home | car vehicle | doctor "
    "physician | dog puppy pup pet | cat kitten pet | shop store | money financial fund budget | business "
    "company | fix repair mend | error failure exception bug | delete remove drop | create make build | change "
    "modify edit update | directory folder | config configuration setting | repo repository | function method | "
    "auth authentication login | test spec | db database | doc documentation | competition contest tournament "
    "| prize award trophy | hobby interest activity pastime | exercise workout gym fitness | run race "
    "marathon | meal food dish dinner lunch | cook bake recipe | paint art draw | song music band concert | "
    "teach class lesson course | school university college | study education degree learn | beach ocean sea | "
    "hike trail mountain | forest wood nature | party celebrate celebration | birthday anniversary | marry "
    "wedding spouse husband wife | divorce breakup | baby newborn infant | help support assist | volunteer "
    "charity donate | advice suggestion tip recommend | goal dream plan aim | worry fear anxious nervous scare | "
    "stress relax calm | like enjoy love favorite fond | hate dislike | talk speak chat discuss | meet "
    "encounter | move relocate | country nation | city town | live reside | gift present | name call title | "
    "game play | team teammate | author writer | write script screenplay | story tale | speech talk presentation "
    "| injury hurt injure | health medical | phone call | email message | problem issue challenge difficulty | "
    "win victory | reason purpose cause | type kind sort genre"
)

LIKE = tuple(_LIKE.split(" | "))
"""Rows of words that may be meant by one another."""
