//! `POST /api/chat` and `POST /api/generate`: Ollama's API.
//!
//! A request is planned as the chat or text request that asks for the same; only what is told of
//! the generation has a form of its own. A call is told when it is whole.

use super::chat::{self, ChatPlan};
use super::completions::{self, CompletionPlan};
use crate::answer_rule::AnswerRule;
use crate::choice_text::{Piece, PieceKind};
use crate::generation::{Generation, GenerationEvent};
use crate::json_body::RawBody;
use crate::ndjson;
use crate::request_record::RequestRecord;
use crate::served_model::ServedModel;
use crate::state::{AppState, Serving};
use crate::submission::{Arrival, Submission};
use crate::token_text::TokenText;
use crate::validation::Delivery;
use crate::wire::completions::CompletionRequest;
use crate::wire::error::ApiError;
use crate::wire::ollama::names::{own_name, own_name_of_prompt};
use crate::wire::ollama::request::{Asked, ChatBody, GenerateBody};
use crate::wire::ollama::response::{
    AnswerForm, Ending, Growth, Line, Logprob, WholeCall, WholeFunction,
};
use crate::wire::shared::WireFinishReason;
use crate::wire::tools::{CallIdStyle, CallIds, arguments_object};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::sync::Arc;

/// What all paths of this API begin with.
pub(super) const PREFIX: &str = "/api/";

/// The tag that names have which are written without one.
const DEFAULT_TAG: &str = ":latest";

/// Answers a conversation, as a stream unless asked otherwise.
pub(super) async fn chat(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let seed = state.seeds().next_seed();
    let plan = move |serving: &Serving, body: ChatBody| {
        let names = names(&serving.model, body.model.as_deref())?;
        plan(serving, names, body.into_asked(&serving.model)?, seed).map_err(own_name)
    };
    let plan = super::read_body(&arrival, headers, body, plan).await?;
    answer(&state, arrival, AnswerForm::Chat, plan).await
}

/// Answers a prompt, as a stream unless asked otherwise.
pub(super) async fn generate(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let seed = state.seeds().next_seed();
    let plan = move |serving: &Serving, body: GenerateBody| {
        let names = names(&serving.model, body.model.as_deref())?;
        let asked = body.into_asked(&serving.model)?;
        plan(serving, names, asked, seed).map_err(own_name_of_prompt)
    };
    let plan = super::read_body(&arrival, headers, body, plan).await?;
    answer(&state, arrival, AnswerForm::Generate, plan).await
}

/// The name of a model, as the client wrote it and as it is served.
pub(super) struct ModelNames {
    pub(super) asked: String,
    pub(super) served: String,
}

/// Looks up a model's name; the default tag may be there or not.
///
/// # Errors
/// Refuses a missing name and those that are not served.
pub(super) fn names(model: &ServedModel, asked: Option<&str>) -> Result<ModelNames, ApiError> {
    let asked = asked.filter(|asked| !asked.is_empty());
    let asked = asked.ok_or_else(|| ApiError::invalid("model", "is required"))?;
    let served = match (model.resolve(Some(asked)), asked.strip_suffix(DEFAULT_TAG)) {
        (Ok(served), _) => served.name,
        (Err(error), None) => return Err(error),
        (Err(error), Some(name)) => model.resolve(Some(name)).map_err(|_| error)?.name,
    };
    Ok(ModelNames { asked: asked.to_owned(), served })
}

/// What a validated body asks for.
struct Plan {
    /// The model's name, as the client wrote it.
    model: String,
    /// `None` where only the model is to be there.
    work: Option<Work>,
}

/// What the engine has to do, and how it is told.
struct Work {
    delivery: Delivery,
    call_id_style: CallIdStyle,
    submission: Submission,
    rule: Option<AnswerRule>,
}

fn plan(serving: &Serving, names: ModelNames, asked: Asked, seed: u64) -> Result<Plan, ApiError> {
    let work = match asked {
        Asked::Load(mut body) => {
            body.model = Some(names.served);
            chat::check_fields(serving, *body)?;
            None
        }
        Asked::Chat(mut body) => {
            body.model = Some(names.served);
            let ChatPlan { delivery, call_id_style, submission, rule, .. } =
                chat::plan(serving, *body, seed)?;
            Some(Work { delivery, call_id_style, submission, rule })
        }
        Asked::Text(mut body) => {
            body.model = Some(names.served);
            Some(plan_text(serving, *body, seed)?)
        }
    };
    Ok(Plan { model: names.asked, work })
}

fn plan_text(serving: &Serving, body: CompletionRequest, seed: u64) -> Result<Work, ApiError> {
    let is_open = body.max_tokens.is_none();
    let CompletionPlan { delivery, mut submission, rule, .. } =
        completions::plan(serving, body, seed)?;
    if is_open {
        // OpenAI's API would end the output after a few tokens.
        let num_prompt_tokens = submission.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let num_prompt_tokens = u32::try_from(num_prompt_tokens).unwrap_or(u32::MAX);
        let rest = serving.model.max_model_len.saturating_sub(num_prompt_tokens);
        submission.sampling.max_tokens = rest;
    }
    let call_id_style = CallIdStyle::Prefixed;
    let rule = rule.map(AnswerRule::Output);
    Ok(Work { delivery, call_id_style, submission, rule })
}

async fn answer(
    state: &AppState,
    arrival: Arrival,
    form: AnswerForm,
    plan: Plan,
) -> Result<Response, ApiError> {
    let Plan { model, work } = plan;
    let Some(mut work) = work else {
        let line = Line::new(&model, form, Growth::default(), Some(Ending::LOADED));
        return Ok(Json(line).into_response());
    };
    if let Some(rule) = work.rule.take() {
        let constraint = rule.compile(&arrival.serving().model.grammars).await;
        work.submission.constraint = Some(constraint.map_err(own_name)?);
    }
    let record = Arc::clone(&arrival.record);
    let answer = Answer {
        model,
        form,
        call_ids: CallIds::new(&state.response_id("call"), work.call_id_style),
        generation: Generation::start(arrival, work.submission).await.map_err(own_name)?,
        record,
        call: None,
        reason: WireFinishReason::Length,
    };
    match work.delivery {
        Delivery::Whole => answer.whole().await,
        Delivery::Stream(_) => Ok(answer.stream()),
    }
}

/// A running answer and what it is told with.
struct Answer {
    model: String,
    form: AnswerForm,
    call_ids: CallIds,
    record: Arc<RequestRecord>,
    generation: Generation,
    /// The call that is being written.
    call: Option<OpenCall>,
    reason: WireFinishReason,
}

/// A call that is being written.
struct OpenCall {
    index: usize,
    name: String,
    arguments: String,
    tokens: Vec<TokenText>,
}

impl Answer {
    /// Collects the answer into one object.
    async fn whole(mut self) -> Result<Response, ApiError> {
        let mut whole = Growth::default();
        while let Some(growth) = self.next().await? {
            whole.add(growth);
        }
        Ok(Json(self.last_line(whole)).into_response())
    }

    /// Tells the answer as it comes; dropping the response aborts the request.
    fn stream(self) -> Response {
        let lines = stream::unfold(Some(self), |answer| async move {
            let mut answer = answer?;
            let next = answer.next().await;
            Some(match next {
                Ok(Some(growth)) => {
                    let line = Line::new(&answer.model, answer.form, growth, None);
                    (ndjson::line(&line), Some(answer))
                }
                Ok(None) => (ndjson::line(&answer.last_line(Growth::default())), None),
                Err(error) => (ndjson::line(&error.body()), None),
            })
        });
        ndjson::response(lines)
    }

    fn last_line(&self, growth: Growth) -> Line<'_> {
        let ending = Ending::new(self.reason, self.generation.usage(), &self.record);
        Line::new(&self.model, self.form, growth, Some(ending))
    }

    /// Returns what the answer grew by next; `None` when it is whole.
    async fn next(&mut self) -> Result<Option<Growth>, ApiError> {
        while let Some(event) = self.generation.next().await? {
            let growth = match event {
                GenerationEvent::Finished { reason, .. } => {
                    self.reason = reason;
                    None
                }
                GenerationEvent::Text(delta) => self.take(delta.piece),
            };
            if growth.is_some() {
                return Ok(growth);
            }
        }
        Ok(self.end_call())
    }

    fn take(&mut self, piece: Piece) -> Option<Growth> {
        let Piece { kind, text, tokens } = piece;
        match kind {
            PieceKind::CallBegun { index, name } => {
                let ended = self.end_call();
                self.call = Some(OpenCall { index, name, arguments: String::new(), tokens });
                ended
            }
            PieceKind::Arguments { .. } => {
                let call = self.call.as_mut().expect("a call begins before its arguments");
                call.arguments.push_str(&text);
                call.tokens.extend(tokens);
                None
            }
            PieceKind::Content => Some(self.behind_call(Growth { content: text, ..told(tokens) })),
            PieceKind::Reasoning => {
                Some(self.behind_call(Growth { thinking: text, ..told(tokens) }))
            }
        }
    }

    /// Returns a growth, behind the call that it ends.
    fn behind_call(&mut self, growth: Growth) -> Growth {
        let mut whole = self.end_call().unwrap_or_default();
        whole.add(growth);
        whole
    }

    fn end_call(&mut self) -> Option<Growth> {
        let OpenCall { index, name, arguments, tokens } = self.call.take()?;
        let id = self.call_ids.id(0, index);
        let function = WholeFunction { index, name, arguments: arguments_object(&arguments) };
        Some(Growth { calls: vec![WholeCall { id, function }], ..told(tokens) })
    }
}

/// Returns a growth by nothing but what is told of its tokens.
fn told(tokens: Vec<TokenText>) -> Growth {
    Growth { logprobs: tokens.into_iter().map(Logprob::from).collect(), ..Growth::default() }
}
