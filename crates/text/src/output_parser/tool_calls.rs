//! Tells tool calls from text, by a format's grammar.
//!
//! One character or marker at a time, so the events joined do not depend on how the output was cut
//! into chunks. From the beginning of what may be a call, text waits until its name and arguments
//! have begun, and not longer; what turns out to be no call comes back as text, from its first
//! character on. Where arguments break off, what follows is text. Only a character that breaks a
//! call is looked at again, so the cost is linear in the output.

use super::OutputEvent;
use super::emitter::Emitter;
use super::json_call::{CallStep, JsonCall};
use super::json_value::is_space;
use super::known_tools::{Evidence, KnownTools};
use super::lookout::{Item, Lookout};
use super::markup_call::{FUNCTION, MarkupCall};
use super::named_call::{ARGS, CALL_ID, NamedCall};
use super::python_call::{PythonCall, begins_name};
use super::tool_format::{BareCalls, Grammar, NameSyntax, Opener, ToolFormat};

/// Parses one output for calls.
#[derive(Clone, Debug)]
pub(crate) struct ToolCalls {
    grammar: &'static Grammar,
    known: KnownTools,
    /// Markers that are no control tokens.
    text_markers: Vec<&'static str>,
    state: State,
    /// What was taken and not given out: text again, if this is no call.
    raw: String,
    out: Emitter,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space has come, and a bare call may.
    Start,
    Text(Lookout),
    Call(Position, Reader),
    /// Behind a call or a list of them.
    After(Position, Lookout),
}

/// Where calls stand.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// What began them; `None` for bare ones.
    opener: Option<&'static Opener>,
    in_list: bool,
}

#[derive(Clone, Debug)]
enum Reader {
    /// Before a call.
    Expect,
    Json(JsonCall),
    Python(PythonCall),
    Named(NamedCall),
    Markup(MarkupCall),
    /// Behind a call in a list.
    CommaOrEnd,
}

impl Position {
    fn evidence(self) -> Evidence {
        self.opener.map_or(Evidence::Bare, |opener| opener.evidence)
    }
}

impl ToolCalls {
    /// Starts at the beginning of an answer; `is_control` tells which markers are control tokens.
    pub(crate) fn new(
        format: ToolFormat,
        known: KnownTools,
        is_control: impl Fn(&str) -> bool,
    ) -> Self {
        let grammar = format.grammar();
        let text_markers = format.markers().filter(|marker| !is_control(marker)).collect();
        let mut parser = Self {
            grammar,
            known,
            text_markers,
            state: State::Start,
            raw: String::new(),
            out: Emitter::default(),
        };
        if grammar.bare_calls == BareCalls::Text {
            parser.go_to_text();
        }
        parser
    }

    /// Takes the next character or marker.
    pub(crate) fn push(&mut self, item: Item) {
        match (&mut self.state, item) {
            (State::Start, Item::Char(c)) if c.is_whitespace() => self.out.content(c),
            (State::Start, Item::Char('{' | '[')) => {
                self.begin(None);
                self.push(item);
            }
            (State::Start, _) => {
                self.go_to_text();
                self.push(item);
            }
            (State::Text(lookout), Item::Char(c)) => {
                let mut text = String::new();
                let marker = lookout.push(c, &mut text);
                text.chars().for_each(|c| self.out.content(c));
                if let Some(opener) = marker.and_then(|marker| self.opener(marker)) {
                    self.begin(Some(opener));
                    self.raw.push_str(opener.marker);
                }
            }
            (State::Text(lookout), Item::Marker(marker)) => {
                let mut text = String::new();
                lookout.release(&mut text);
                text.chars().for_each(|c| self.out.content(c));
                if let Some(opener) = self.opener(marker) {
                    self.begin(Some(opener));
                }
            }
            (State::Call(..), _) => self.in_call(item),
            (State::After(..), _) => self.after(item),
        }
    }

    /// Ends the output: what waits is no call.
    pub(crate) fn finish(&mut self) {
        self.give_back();
        self.out.finish();
    }

    /// Takes the events that have come up.
    pub(crate) fn take_events(&mut self) -> Vec<OutputEvent> {
        self.out.take()
    }

    fn opener(&self, marker: &str) -> Option<&'static Opener> {
        self.grammar.openers.iter().find(|opener| opener.marker == marker)
    }

    fn begin(&mut self, opener: Option<&'static Opener>) {
        self.state = State::Call(Position { opener, in_list: false }, Reader::Expect);
    }

    /// Gives back as text what was taken for a call, and goes on with text.
    fn give_back(&mut self) {
        if let State::Text(lookout) | State::After(_, lookout) = &mut self.state {
            lookout.release(&mut self.raw);
        }
        let raw = std::mem::take(&mut self.raw);
        raw.chars().for_each(|c| self.out.content(c));
        self.go_to_text();
    }

    fn go_to_text(&mut self) {
        let openers = self.grammar.openers.iter().map(|opener| opener.marker);
        let markers = openers.filter(|marker| self.text_markers.contains(marker)).collect();
        self.state = State::Text(Lookout::new(markers));
    }

    fn in_call(&mut self, item: Item) {
        let State::Call(position, reader) = &mut self.state else { return };
        let position = *position;
        let progress = self.out.progress();
        let step = match (reader, item) {
            (Reader::Json(call), Item::Char(c)) => call.push(c, &self.known, &mut self.out),
            (Reader::Python(call), Item::Char(c)) => call.push(c, &self.known, &mut self.out),
            (Reader::Markup(call), Item::Char(c)) => call.push(c, &self.known, &mut self.out),
            (Reader::Named(call), _) => call.push(item, &mut self.out),
            (Reader::Expect, Item::Char(c)) => self.begin_call(position, c),
            (Reader::CommaOrEnd, Item::Char(c)) => self.between_calls(position, c),
            (
                Reader::Json(_)
                | Reader::Python(_)
                | Reader::Markup(_)
                | Reader::Expect
                | Reader::CommaOrEnd,
                _,
            ) => CallStep::Malformed,
        };
        if step == CallStep::Malformed {
            self.give_back();
            return self.push(item);
        }
        if self.out.progress() > progress {
            self.raw.clear();
            if let State::Call(_, Reader::Markup(call)) = &self.state {
                self.raw.push_str(&call.held());
            }
        } else if let (State::Call(..), Item::Char(c)) = (&self.state, item) {
            self.raw.push(c);
        }
        if step == CallStep::Ended {
            if position.in_list {
                self.state = State::Call(position, Reader::CommaOrEnd);
            } else {
                self.go_behind(position);
            }
        }
    }

    /// Takes a character before a call.
    fn begin_call(&mut self, mut position: Position, c: char) -> CallStep {
        let syntax = self.grammar.name_syntax;
        let reader = match c {
            _ if is_space(c) => return CallStep::More,
            _ if position.opener.is_some_and(|opener| opener.marker == FUNCTION) => {
                Reader::Markup(MarkupCall::in_tag(position.evidence()))
            }
            '<' if syntax == NameSyntax::Markup => {
                Reader::Markup(MarkupCall::new(position.evidence()))
            }
            '{' => Reader::Json(JsonCall::new(position.evidence())),
            '[' if !position.in_list => {
                position.in_list = true;
                self.state = State::Call(position, Reader::Expect);
                return CallStep::More;
            }
            _ if !begins_name(c) => return CallStep::Malformed,
            // Llama 3 writes Python lists as well, whatever it was asked for.
            _ if position.in_list && syntax != NameSyntax::Named => {
                Reader::Python(PythonCall::new())
            }
            _ if position.opener.is_none()
                || matches!(syntax, NameSyntax::None | NameSyntax::Markup) =>
            {
                return CallStep::Malformed;
            }
            _ if syntax == NameSyntax::Python => Reader::Python(PythonCall::new()),
            _ => {
                let markers = [ARGS, CALL_ID].into_iter();
                let texts = markers.filter(|marker| self.text_markers.contains(marker)).collect();
                Reader::Named(NamedCall::new(texts))
            }
        };
        self.state = State::Call(position, reader);
        match &mut self.state {
            State::Call(_, Reader::Json(call)) => call.push(c, &self.known, &mut self.out),
            State::Call(_, Reader::Python(call)) => call.push(c, &self.known, &mut self.out),
            State::Call(_, Reader::Markup(call)) => call.push(c, &self.known, &mut self.out),
            State::Call(_, Reader::Named(call)) => call.push(Item::Char(c), &mut self.out),
            State::Call(..) | State::Start | State::Text(_) | State::After(..) => {
                CallStep::Malformed
            }
        }
    }

    /// Takes a character behind a call in a list.
    fn between_calls(&mut self, position: Position, c: char) -> CallStep {
        match c {
            _ if is_space(c) => CallStep::More,
            ',' => {
                self.state = State::Call(position, Reader::Expect);
                CallStep::More
            }
            ']' => {
                self.raw.clear();
                self.go_behind(Position { in_list: false, ..position });
                CallStep::More
            }
            _ => CallStep::Malformed,
        }
    }

    fn go_behind(&mut self, position: Position) {
        self.raw.clear();
        let closer = position.opener.and_then(|opener| opener.closer);
        let openers = self.grammar.openers.iter().map(|opener| opener.marker);
        let markers = closer.into_iter().chain(openers);
        let markers = markers.filter(|marker| self.text_markers.contains(marker)).collect();
        self.state = State::After(position, Lookout::new(markers));
    }

    /// Takes what comes behind calls: the marker that ends them, or more of them, or text.
    fn after(&mut self, item: Item) {
        let State::After(position, lookout) = &mut self.state else { return };
        let position = *position;
        let marker = match item {
            Item::Marker(marker) => {
                lookout.release(&mut self.raw);
                Some(marker)
            }
            Item::Char(c) => {
                let mut text = String::new();
                let marker = lookout.push(c, &mut text);
                if !text.is_empty() {
                    lookout.release(&mut text);
                    return self.text_after(position, &text);
                }
                marker
            }
        };
        // White space between calls and markers is markup.
        if marker.is_some() && self.raw.trim_start().is_empty() {
            self.raw.clear();
        }
        if let Some(opener) = marker.and_then(|marker| self.opener(marker)) {
            self.give_back();
            self.begin(Some(opener));
            if matches!(item, Item::Char(_)) {
                self.raw.push_str(opener.marker);
            }
        } else if marker.is_some() {
            // The closer has come: what follows is as before the opener.
            self.give_back();
        }
    }

    /// Takes text behind calls that is no marker.
    fn text_after(&mut self, position: Position, text: &str) {
        let mut chars = text.chars();
        let Some(first) = chars.next() else { return };
        let goes_on = match position.opener {
            None => matches!(first, '{' | '['),
            Some(opener) => {
                let is_fence = opener.evidence == Evidence::Bare;
                is_fence && self.grammar.name_syntax == NameSyntax::Python && begins_name(first)
            }
        };
        let is_separator = position.opener.is_none() && matches!(first, ';' | ',');
        if goes_on {
            self.state = State::Call(position, Reader::Expect);
            self.push(Item::Char(first));
        } else if first.is_whitespace() || is_separator {
            self.raw.push(first);
        } else {
            self.give_back();
            self.push(Item::Char(first));
        }
        chars.for_each(|c| self.push(Item::Char(c)));
    }
}
