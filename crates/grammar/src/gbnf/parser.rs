//! Reads GBNF.
//!
//! A rule ends where the next one begins, so lines may be broken anywhere.

use super::ast::{Element, Grammar, Sequence};
use crate::lark_text::MAX_RULES;
use std::collections::HashMap;

/// Most parentheses inside each other.
const MAX_DEPTH: usize = 64;
/// Most operators behind an element, each of which applies to what the one before it gives.
const MAX_OPERATORS: usize = 4;
/// Most repetitions that a bound may ask for; llama.cpp has 2,000.
const MAX_REPETITIONS: u32 = 65_536;

/// Reads a grammar.
///
/// # Errors
/// Says what is wrong and where.
pub(super) fn parse(text: &str) -> Result<Grammar, String> {
    let mut parser = Parser { text, rest: text, rules: Vec::new(), indexes: HashMap::new() };
    // Rule 0 is the one that grammars begin with, wherever it stands.
    parser.rule("root")?;
    parser.skip();
    while !parser.rest.is_empty() {
        let name = parser.name()?.to_owned();
        if !parser.takes("::=") {
            return Err(parser.wrong(&format!("expected ::= after `{name}`")));
        }
        let sequences = parser.sequences(0)?;
        let index = parser.rule(&name)?;
        if parser.rules[index].1.replace(sequences).is_some() {
            return Err(format!("the rule `{name}` is defined twice"));
        }
    }
    let rules = parser
        .rules
        .into_iter()
        .map(|(name, rule)| rule.ok_or_else(|| format!("the rule `{name}` is not defined")));
    Ok(Grammar { rules: rules.collect::<Result<_, _>>()? })
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    /// Names and definitions; a rule that was only referred to has none.
    rules: Vec<(String, Option<Vec<Sequence>>)>,
    indexes: HashMap<String, usize>,
}

impl<'a> Parser<'a> {
    fn wrong(&self, message: &str) -> String {
        let before = &self.text[..self.text.len() - self.rest.len()];
        let line = before.matches('\n').count() + 1;
        let found: String = self.rest.chars().take(20).collect();
        format!("line {line}: {message}, at `{found}`")
    }

    /// Returns the index of a rule.
    fn rule(&mut self, name: &str) -> Result<usize, String> {
        if let Some(&index) = self.indexes.get(name) {
            return Ok(index);
        }
        if self.rules.len() == MAX_RULES {
            return Err(format!("there are more than {MAX_RULES} rules"));
        }
        self.rules.push((name.to_owned(), None));
        self.indexes.insert(name.to_owned(), self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix('#') else { return };
            self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
        }
    }

    /// Takes a symbol and the white space behind it, if it comes next.
    fn takes(&mut self, symbol: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(symbol) else { return false };
        self.rest = rest;
        self.skip();
        true
    }

    fn name_length(&self) -> usize {
        let is_other = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
        self.rest.find(is_other).unwrap_or(self.rest.len())
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let length = self.name_length();
        if length == 0 {
            return Err(self.wrong("expected the name of a rule"));
        }
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.skip();
        Ok(name)
    }

    /// Tells whether the next rule begins here.
    fn is_at_rule(&self) -> bool {
        let length = self.name_length();
        length > 0 && self.rest[length..].trim_start().starts_with("::=")
    }

    fn sequences(&mut self, depth: usize) -> Result<Vec<Sequence>, String> {
        if depth > MAX_DEPTH {
            return Err(self.wrong(&format!("more than {MAX_DEPTH} parentheses inside each other")));
        }
        let mut sequences = vec![self.sequence(depth)?];
        while self.takes("|") {
            sequences.push(self.sequence(depth)?);
        }
        Ok(sequences)
    }

    fn sequence(&mut self, depth: usize) -> Result<Sequence, String> {
        let mut elements = Vec::new();
        while !self.rest.is_empty() && !self.rest.starts_with(['|', ')']) && !self.is_at_rule() {
            let element = self.element(depth)?;
            self.skip();
            let element = self.repeated(element)?;
            if element != Element::Literal(String::new()) {
                elements.push(element);
            }
        }
        Ok(elements)
    }

    fn element(&mut self, depth: usize) -> Result<Element, String> {
        let first = self.rest.chars().next().unwrap_or_default();
        match first {
            '"' => self.literal(),
            '[' => self.class(),
            '.' => {
                self.rest = &self.rest[1..];
                Ok(Element::Class("(?s:.)".to_owned()))
            }
            '(' => {
                self.takes("(");
                let sequences = self.sequences(depth + 1)?;
                if !self.takes(")") {
                    return Err(self.wrong("expected )"));
                }
                Ok(Element::Group(sequences))
            }
            '<' | '!' => {
                Err(self.wrong("elements that name tokens (`<…>`, `!<…>`) are not supported"))
            }
            _ => {
                let name = self.name()?;
                Ok(Element::Rule(self.rule(name)?))
            }
        }
    }

    /// Applies the operators that follow an element.
    fn repeated(&mut self, mut element: Element) -> Result<Element, String> {
        for _ in 0..=MAX_OPERATORS {
            let (min, max) = if self.takes("*") {
                (0, None)
            } else if self.takes("+") {
                (1, None)
            } else if self.takes("?") {
                (0, Some(1))
            } else if self.takes("{") {
                self.bounds()?
            } else {
                return Ok(element);
            };
            element = Element::Repeat { element: Box::new(element), min, max };
        }
        Err(self.wrong(&format!("more than {MAX_OPERATORS} operators behind an element")))
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let min = self.number()?;
        let max = match (self.takes(","), self.rest.starts_with('}')) {
            (true, true) => None,
            (true, false) => Some(self.number()?),
            (false, _) => Some(min),
        };
        if max.is_some_and(|max| max < min) {
            return Err(self.wrong("the bounds of a repetition are the wrong way round"));
        }
        if !self.takes("}") {
            return Err(self.wrong("expected }"));
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, String> {
        let length = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let number = self.rest[..length].parse().ok().filter(|number| *number <= MAX_REPETITIONS);
        let expected = format!("expected a number up to {MAX_REPETITIONS}");
        let number = number.ok_or_else(|| self.wrong(&expected))?;
        self.rest = &self.rest[length..];
        self.skip();
        Ok(number)
    }

    fn literal(&mut self) -> Result<Element, String> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        while !self.rest.starts_with('"') {
            text.push(self.character()?);
        }
        self.rest = &self.rest[1..];
        Ok(Element::Literal(text))
    }

    /// Reads a class, and writes it as one of a regular expression.
    fn class(&mut self) -> Result<Element, String> {
        self.rest = &self.rest[1..];
        let mut class = String::from("[");
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            class.push('^');
        }
        let mut is_empty = true;
        while !self.rest.starts_with(']') {
            let from = self.character()?;
            let mut to = from;
            // A hyphen before the end is a character.
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                to = self.character()?;
            }
            if to < from {
                return Err(self.wrong("a range of characters is the wrong way round"));
            }
            class.push_str(&format!("\\x{{{:X}}}-\\x{{{:X}}}", u32::from(from), u32::from(to)));
            is_empty = false;
        }
        self.rest = &self.rest[1..];
        if is_empty {
            return Err(self.wrong("a class of characters is empty"));
        }
        class.push(']');
        Ok(Element::Class(class))
    }

    /// Reads a character of a literal or a class.
    fn character(&mut self) -> Result<char, String> {
        let mut characters = self.rest.chars();
        let c = characters.next().ok_or_else(|| self.wrong("a literal or class does not end"))?;
        if c != '\\' {
            self.rest = characters.as_str();
            return Ok(c);
        }
        let escape = characters.next().unwrap_or_default();
        let num_digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            't' | 'r' | 'n' | '\\' | '"' | '[' | ']' | '-' | '^' => 0,
            _ => return Err(self.wrong("an unknown escape")),
        };
        let after = characters.as_str();
        let c = match escape {
            't' => '\t',
            'r' => '\r',
            'n' => '\n',
            _ if num_digits == 0 => escape,
            _ => {
                let digits = after.get(..num_digits).unwrap_or_default();
                let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                code.ok_or_else(|| self.wrong("an escape that is no character"))?
            }
        };
        self.rest = &after[num_digits..];
        Ok(c)
    }
}
