//! From a client's source to a parser: the calls into `llguidance`, and their bounds.
//!
//! Bounds hold in two ways. What a source may hold is counted before it is compiled, and the parser
//! counts the work of compiling and of each step itself: expressions built, states of its lexer (1 to
//! 2 kB each), items of its grammar. What exceeds a bound is an error, never less of a constraint.

use crate::GrammarError;
use crate::GrammarSource;
use crate::gbnf;
use crate::grammar_source::MAX_SOURCE_BYTES;
use crate::json_path;
use crate::json_schema;
use crate::lark_text;
use crate::schema_fault;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::TokEnv;

/// Most texts of a choice.
const MAX_CHOICES: usize = 10_000;

/// Limits of the parser. Its defaults are for a process that trusts its grammars.
fn limits() -> ParserLimits {
    ParserLimits {
        // A sequence may hold some 30 MB of these; ordinary schemas need hundreds.
        max_lexer_states: 20_000,
        // Symbols; 30 tools with large schemas have some thousand.
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiles grammars for one vocabulary.
pub(crate) struct Compiler {
    factory: ParserFactory,
}

impl Compiler {
    /// Prepares a vocabulary: sorts its tokens by what JSON strings and white space may hold. Costs
    /// some hundred milliseconds for 150,000 tokens.
    ///
    /// # Errors
    /// Returns the parser's message.
    pub(crate) fn new(vocabulary: &TokEnv) -> Result<Self, String> {
        let factory = ParserFactory::new_simple(vocabulary);
        let mut factory = factory.map_err(|error| summary(&error))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory })
    }

    /// Returns the vocabulary.
    pub(crate) fn vocabulary(&self) -> &TokEnv {
        self.factory.tok_env()
    }

    /// Compiles a source into a parser without output.
    ///
    /// # Errors
    /// Says what is wrong with the source, and where if it is a schema.
    pub(crate) fn compile(&self, source: &GrammarSource) -> Result<Matcher, GrammarError> {
        if source.key().len() > MAX_SOURCE_BYTES {
            let message = format!("is longer than {MAX_SOURCE_BYTES} bytes");
            return Err(GrammarError::whole(message));
        }
        match source {
            GrammarSource::JsonObject => self.schema(&json!({"type": "object"})),
            GrammarSource::JsonSchema(schema) => self.schema(schema),
            GrammarSource::Regex(regex) => self.regex(regex),
            GrammarSource::Choice(texts) => self.choice(texts),
            GrammarSource::Lark(text) => self.lark(lark_text::prepare(text)?),
            GrammarSource::Gbnf(text) => self.lark(gbnf::to_lark(text)?),
            GrammarSource::Shape(shape) => {
                let trie = self.vocabulary().tok_trie();
                self.lark(shape.to_lark(&|text| trie.get_special_token(text))?)
            }
        }
    }

    fn schema(&self, schema: &Value) -> Result<Matcher, GrammarError> {
        let prepared = json_schema::prepare(schema)?;
        let compile = |schema: &Value| {
            self.parser(GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema.clone())))
        };
        compile(&prepared)
            .map_err(|message| schema_fault::find(&prepared, message, &|part| compile(part).err()))
    }

    fn lark(&self, text: String) -> Result<Matcher, GrammarError> {
        let grammar = TopLevelGrammar::from_lark(text);
        self.parser(GrammarInit::Serialized(grammar)).map_err(GrammarError::whole)
    }

    fn regex(&self, regex: &str) -> Result<Matcher, GrammarError> {
        if regex.is_empty() {
            return Err(GrammarError::whole("must not be empty"));
        }
        let grammar = TopLevelGrammar::from_regex(regex);
        self.parser(GrammarInit::Serialized(grammar)).map_err(GrammarError::whole)
    }

    fn choice(&self, texts: &[String]) -> Result<Matcher, GrammarError> {
        if texts.is_empty() || texts.len() > MAX_CHOICES {
            let message = format!("must hold 1 to {MAX_CHOICES} texts, got {}", texts.len());
            return Err(GrammarError::whole(message));
        }
        if let Some(i) = texts.iter().position(String::is_empty) {
            return Err(GrammarError::at(json_path::item("", i), "must not be empty"));
        }
        let texts: Vec<String> = texts.iter().map(|text| lark_text::string(text)).collect();
        // A terminal, so that all of it is one regular expression.
        self.lark(format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | ")))
    }

    /// Builds a parser without output.
    fn parser(&self, init: GrammarInit) -> Result<Matcher, String> {
        let parser = self.factory.create_parser_from_init_default(init);
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            None => Ok(matcher),
            Some(error) => Err(summary(&error)),
        }
    }
}

/// Returns what the parser's message says: its first line, and what the parser of regular expressions
/// found. What else follows are pictures and internals.
fn summary(error: &impl ToString) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    match text.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(found) => format!("{first} {found}"),
        None => first.to_owned(),
    }
}
