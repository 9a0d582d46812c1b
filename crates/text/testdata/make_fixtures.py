"""Makes the fixtures in this folder with independent tokenizers.

    pip install tokenizers sentencepiece gguf protobuf jinja2 transformers
    python make_fixtures.py [--smollm2 FILE.gguf] [--gemma3 FILE.gguf]

Without arguments: `byte_level.json`, `sentence_piece.json` and `tokenizer_json.json`, small
vocabularies trained on the torture texts below, with the ids that Hugging Face's `tokenizers` and
Google's `sentencepiece` give; and `chat_templates.json`, templates that use what published ones
use, with what `transformers` renders. With a model file: the ids of its full vocabulary, in
`smollm2_torture.json` or `gemma3_torture.json`. Everything is deterministic.
"""

import argparse
import io
import json
import pathlib

from tokenizers import (
    AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers,
)
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

HERE = pathlib.Path(__file__).parent

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    " leading space",
    "trailing space ",
    "trailing newline\n",
    "two  spaces   three    four and more                                         spaces",
    "\ttab\t\ttabs\t\t\tand \t mixed \t  tabs",
    "line\nbreaks\n\nand\n\n\nmore\r\nwindows\r\n\r\nold mac\rdone",
    " \n \n\t\n  \n",
    "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
    "non\u00a0breaking\u202fspaces\u2003em\u3000ideographic\u2028line\u2029paragraph\u0085next",
    "zero\u200bwidth\u200d joiner\ufeffbom",
    "café naïve Ångström Zürich señor façade œuvre",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m — decomposed",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031ea\u0349\u0351l\u034ego\u0310",
    "你好，世界！今天天气很好。",
    "日本語のテキスト、カタカナとひらがな。",
    "한국어 텍스트입니다. 조합형: \u1112\u1161\u11ab",
    "Привет, мир! Ёлки-палки; ЩЫЭ",
    "Ελληνικά με τόνους: ΐ ΰ ᾳ",
    "שלום עולם, טקסט מימין לשמאל",
    "مرحبا بالعالم، نص من اليمين إلى اليسار ١٢٣",
    "नमस्ते दुनिया, क्षत्रिय हिन्दी १२३",
    "ไทยไม่มีช่องว่างระหว่างคำ",
    "😀 😃😄 👍🏽 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇫🇷 ❤️ ☺ ✂️ 🤷🏻\u200d♀️",
    "mixed混合текст🙂end",
    "1234567890 12 345 6,789.01 1e-9 0x1F 3.14159265358979 ½ ² Ⅷ ①",
    "a1b2c3 v2.0.1-rc.3 2024-07-31T12:34:56Z",
    "I'm you're he'll we've they'd it's DON'T I'LL O'Brien 'tis ''quoted'' it’s",
    "fn main() {\n    let x: Vec<u8> = vec![0; 16];\n    println!(\"{:?}\", &x[..4]);\n}\n",
    "def f(x, *args, **kw):\n\treturn {k: v for k, v in kw.items() if k != '__init__'}\n\n\n# end",
    "#include <stdio.h>\nint main(void){printf(\"%d\\n\",1<<3);return 0;}//c",
    "<html><body class=\"a\"><h1>Title</h1><p>Text<br/></p></body></html>",
    "SELECT * FROM t WHERE a>=1 AND b<>'x' OR c!=\"y\"; -- comment",
    "https://example.com/path?q=a%20b&lang=en#frag user@example.org C:\\dir\\file.txt",
    "!!! ??? ... --- === *** ### $$$ %%% ^^^ &&& ((( ))) [[[ ]]] {{{ }}} <<< >>> ~~~ ``` |||",
    "HTTPServer camelCaseWord SCREAMING_SNAKE_CASE kebab-case XMLHttpRequest iPhone",
    "$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$ ∀x∈ℝ ∃y: x≤y ⇒ ∑∞ → ≠ ±",
    "\u0000\u0001\u0002\u0007\u0008\u000b\u000c\u001b[31mred\u001b[0m\u007f\u0080\u009f",
    "private \ue000\uf8ff \U000f0000 unassigned \u0378 \U0001fbff noncharacters \ufdd0 \U0010ffff",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 ⓔⓝⓒⓛⓞⓢⓔⓓ ｆｕｌｌｗｉｄｔｈ ﬁ ﬂ ǅ ß ẞ İ ı ſ K Å",
    "a" * 300,
    "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichenverordnung" * 4,
    "▁lower▁one▁eighth▁block ▁ ▁▁",
    "Ġbyte ĠlevelĊ characters ĉ",
    "<0x41> <0xFF> <unk> <pad> [UNK] [MASK]",
    "x\u0300\u0301\u0302y\u0327 \u0301alone",
    "“curly” ‘quotes’ «guillemets» „low“ – en — em … ellipsis • bullet",
    "   \u3000 \u00a0  mixed\u2002 \u2009spaces \u205f end",
    "ab\n cd\n  ef\n   gh\n    ij \n     kl  \n",
    "newline before space\n  \n  x  \n",
    "ÀÉÎÕÜ ÇÑ àéîõü çñ ŁÓDŹ łódź ĞÜŞİ ğüşı",
]

# Raw text that only means something where special tokens are recognised.
MARKUP_TEXTS = [
    "<s>Hello",
    "Hello </s> there<s>  x",
    "<think> hm </think>",
    " <mask> a <mask>b",
    "a<|end|>\n\n  b<|end|> c",
    "<s>",
    "a  <s>  b",
]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL)
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
          r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(contractions, digits):
    first = r"[^\r\n\p{L}\p{N}]?"
    return (f"{first}{UPPER}*{LOWER}+{contractions}|{first}{UPPER}+{LOWER}*{contractions}"
            f"|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)


GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def words_of(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


DIGITS_THEN_GPT2 = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2_WORDS])

CASED_LETTERS = (
    r"\s?"
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-"
    "Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄ"
    "ῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿ"
    "ⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀"
    "-𐳲𑢠-𑣟𞤀-𞥃]+")
LINE_BREAK = "[\r\n]"
CJK = "[一-龥ࠀ-一가-\ud7ff]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def steps(*parts):
    """Patterns to cut at, or pre-tokenizers; then bytes, unless the last step wrote them."""
    cut = [pre_tokenizers.Split(Regex(part), "isolated") if isinstance(part, str) else part
           for part in parts]
    if not any(part is GPT2_WORDS for part in parts):
        cut.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(cut)


# name -> (pre-tokenizer, normalizer, ignore_merges)
RULES = {
    "gpt-2": (GPT2_WORDS, None, False),
    "smollm": (DIGITS_THEN_GPT2, None, False),
    "llama-bpe": (words_of(LLAMA3), None, True),
    "dbrx": (words_of(LLAMA3), None, False),
    "qwen2": (words_of(QWEN2), normalizers.NFC(), False),
    "qwen35": (words_of(QWEN35), normalizers.NFC(), False),
    "tekken": (words_of(cased("", r"\p{N}")), None, True),
    "gpt-4o": (words_of(cased(CONTRACTIONS + "?", r"\p{N}{1,3}")), None, False),
    "mpt": (GPT2_WORDS, normalizers.NFC(), False),
    "command-r": (DIGITS_THEN_GPT2, normalizers.NFC(), False),
    "bloom": (steps(BLOOM), None, False),
    "viking": (steps(BLOOM, DIGITS), None, False),
    "falcon": (steps(
        pre_tokenizers.Punctuation("contiguous"), GPT2_WORDS,
        pre_tokenizers.Digits(individual_digits=False), "[0-9][0-9][0-9]"), None, False),
    "deepseek-llm": (steps(
        LINE_BREAK, CASED_LETTERS, r"\s?" "[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$", CJK, DIGITS), None, False),
    "deepseek-coder": (
        steps(LINE_BREAK, r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGITS), None, False),
    "deepseek-v3": (steps(
        r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|" + TAIL), None, False),
    "default": (steps(
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+", "[0-9][0-9][0-9]"), None, False),
}


def byte_level_tokenizer(vocab, merges, rule):
    pre_tokenizer, normalizer, ignore_merges = RULES[rule]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def ids_of(encode, texts=TEXTS):
    return [encode(text) for text in texts]


def write(name, value):
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (HERE / name).write_text(text + "\n")


def trained_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words_of(LLAMA3)
    trainer = trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_level_fixture(vocab, merges):
    rules = {
        name: ids_of(lambda text: byte_level_tokenizer(vocab, merges, name).encode(text).ids)
        for name in RULES
    }
    tokens = sorted(vocab, key=vocab.get)
    write("byte_level.json", {
        "texts": TEXTS,
        "tokens": tokens,
        "merges": [" ".join(merge) for merge in merges],
        "rules": rules,
    })


def sentence_piece_fixture():
    models_by_prefix = []
    for add_prefix in (False, True):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([t for t in TEXTS if t.strip()]), model_writer=out,
            model_type="bpe", vocab_size=900, character_coverage=0.98, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=add_prefix, user_defined_symbols=["\n", "\n\n", "▁▁", "▁▁▁▁", "<h1>"],
            allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1,
            hard_vocab_limit=False)
        processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        proto = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
        models_by_prefix.append({
            "add_space_prefix": add_prefix,
            "tokens": [gguf_text(piece) for piece in proto.pieces],
            "scores": [piece.score for piece in proto.pieces],
            "token_types": [int(piece.type) for piece in proto.pieces],
            "unk": processor.unk_id(),
            "ids": ids_of(processor.encode),
        })
    write("sentence_piece.json", {"texts": TEXTS, "models": models_by_prefix})


def gguf_text(piece):
    """GGUF converters write the spaces of user-defined pieces as such."""
    return piece.piece.replace("▁", " ") if piece.type == 4 else piece.piece


def tokenizer_json_fixture(vocab, merges):
    added = [
        AddedToken("<s>", special=True, normalized=False),
        AddedToken("</s>", special=True, normalized=False),
        AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
        AddedToken("<mask>", special=True, normalized=False, lstrip=True),
        AddedToken("<think>", special=False, normalized=False),
        AddedToken("</think>", special=False, normalized=False),
    ]
    byte_level = byte_level_tokenizer(vocab, merges, "llama-bpe")
    byte_level.decoder = decoders.ByteLevel()
    byte_level.add_tokens(added)
    byte_level.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", byte_level.token_to_id("<s>"))])

    metaspace_vocab = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        [text for text in TEXTS if len(set(text)) > 3 and max(text) < "\u0180"],
        trainers.BpeTrainer(vocab_size=500, show_progress=False, max_token_length=8))
    model = json.loads(trained.to_str())["model"]
    metaspace_vocab += sorted(model["vocab"], key=model["vocab"].get)
    metaspace = {token: id for id, token in enumerate(metaspace_vocab)}

    def spaced(normalizer, pre_tokenizer):
        tokenizer = Tokenizer(models.BPE(
            vocab=metaspace, merges=[tuple(merge) for merge in model["merges"]],
            unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        if pre_tokenizer is not None:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.Sequence([
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0)])
        tokenizer.add_tokens(added)
        return tokenizer

    kinds = {
        "byte_level": byte_level,
        "metaspace_first": spaced(
            None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        "prepend_always": spaced(
            normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
        "replace_only": spaced(normalizers.Replace(" ", "▁"), None),
    }
    texts = TEXTS + MARKUP_TEXTS
    write("tokenizer_json.json", {"texts": texts, "tokenizers": {
        name: {
            "json": json.loads(tokenizer.to_str()),
            "ids": ids_of(lambda text: tokenizer.encode(text).ids, texts),
        } for name, tokenizer in kinds.items()}})


TEMPLATES = {
    "turns with a default system prompt": """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|start|>system\nBe brief.<|end|>\n' }}
{% endif %}
{{- '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>' + '\n' -}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|start|>assistant\n' }}
{%- endif %}
""",
    "system merged into the first user turn": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] | trim + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("bad content") }}{%- endif -%}
    {{ '</turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\n' }}{%- endif -%}
""",
    "tools and thoughts": """{%- if tools %}
    {{- 'Tools:\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\n" }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{% set content = message.content %}
    {%- else %}{% set content = '' %}{% endif %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '[assistant' ~ loop.index ~ ']' }}
        {%- if loop.index0 > ns.last %}{{ '(' + thought.strip() + ')' }}{% endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}
            {{- '}' }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{ '[tools' }}{% endif %}
        {{- ' ' + content }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{ ']' }}{% endif %}
    {%- else %}
        {{- '[' + message.role + ']' + content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '()' }}{% endif %}
{%- endif %}""",
    "loop controls, macros and marks for training": """{% macro turn(role, text='') %}
<{{ role | upper }}>{{ text }}{% endmacro %}
{% for message in messages %}
  {% if message.role == 'tool' %}{% continue %}{% endif %}
  {% if loop.index > 3 %}{% break %}{% endif %}
  {% if message.role == 'assistant' %}
{% generation %}
{{ turn('assistant', message.content) }}
{%- endgeneration %}
  {% else %}
{{ turn(message.role, message.content | string) }}
  {% endif %}
{% endfor %}
""",
    "python's way to write values and handle strings": """
{{- none }} {{ true }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ [1, 'a', none] }}
{{ {'a': 1}.items() | list | length }} {{ 'a,b,c'.split(',') | join('-') }} {{ "x" * 3 }}
{{ "Hello World".title() }} {{ 'abc'[1:] }} {{ 'abc'[-1] }} {{ 'abc'[::-1] }} {{ "%s-%d" | format('a', 3) }}
{{ 'aXbX'.replace('X', '') }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('c', 'd')) }} {{ 'abc'.find('c') }}
{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ (messages | first).role }} {{ (messages | last).role }} {{ missing is defined }} {{ missing | default('fallback') }}
{% for key, value in {'b': 1, 'a': 2} | dictsort %}{{ key }}={{ value }};{% endfor %}
{% for key, value in {'b': 1, 'a': 2}.items() %}{{ key }}={{ value }};{% endfor %}
{% set list = [1] + [2, 3] %}{{ list }} {{ 2 in list }} {{ list is iterable }} {{ {} is mapping }}
{{ ' x '.strip() ~ '|' ~ 'xxaxx'.strip('x') ~ '|' ~ 'a\nb'.splitlines() | length }} {{ 'A' if false }}
""",
}

CHATS = [
    {"messages": [{"role": "user", "content": " Hi <there> & \"you\" "}],
     "add_generation_prompt": True},
    {"messages": [
        {"role": "system", "content": " Speak Klingon.\n"},
        {"role": "user", "content": "Qapla'?\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes ✓"},
        {"role": "user", "content": "Why?"},
    ], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [
        {"role": "user", "content": "Weather in Zürich and Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function",
             "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2, "x": None}}},
            {"type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}},
        ]},
        {"role": "tool", "content": "12°"},
        {"role": "tool", "content": "3°"},
    ], "tools": [{"type": "function", "function": {
        "name": "weather", "description": "It's <now>", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": []}}}],
     "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
     "add_generation_prompt": False},
]


def chat_template_fixture():
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template
    renders = []
    for name, template in TEMPLATES.items():
        for chat in CHATS:
            variables = dict(chat)
            messages = variables.pop("messages")
            expected = {}
            try:
                rendered, _ = render_jinja_template(
                    [messages], chat_template=template, bos_token="<s>", **variables)
                expected["text"] = rendered[0]
            except TemplateError as error:
                expected["raised"] = str(error)
            renders.append({"name": name, "template": template, "chat": chat, **expected})
    write("chat_templates.json", renders)


def gguf_fields(path):
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    return lambda key: fields["tokenizer.ggml." + key].contents()


def smollm2_fixture(path):
    field = gguf_fields(path)
    assert field("pre") == "smollm"
    vocab = {token: id for id, token in enumerate(field("tokens"))}
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    tokenizer = byte_level_tokenizer(vocab, merges, "smollm")
    write("smollm2_torture.json", {
        "texts": TEXTS, "ids": ids_of(lambda text: tokenizer.encode(text).ids)})


def gemma3_fixture(path):
    field = gguf_fields(path)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.unk_id = field("unknown_token_id")
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    pieces = zip(field("tokens"), field("scores"), field("token_type"))
    for id, (token, score, kind) in enumerate(pieces):
        kind = 2 if id == proto.trainer_spec.unk_id else int(kind)
        if kind == 4:
            token = token.replace(" ", "▁")
        proto.pieces.add(piece=token, score=float(score), type=kind)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    write("gemma3_torture.json", {"texts": TEXTS, "ids": ids_of(processor.encode)})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2")
    parser.add_argument("--gemma3")
    arguments = parser.parse_args()
    vocab, merges = trained_bpe()
    byte_level_fixture(vocab, merges)
    sentence_piece_fixture()
    tokenizer_json_fixture(vocab, merges)
    chat_template_fixture()
    if arguments.smollm2:
        smollm2_fixture(arguments.smollm2)
    if arguments.gemma3:
        gemma3_fixture(arguments.gemma3)


if __name__ == "__main__":
    main()
