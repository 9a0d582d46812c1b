//! How the choices of a text completion are found: sampled, picked out of more, or searched.
//!
//! `best_of` without beams follows OpenAI's legacy API: more sequences are sampled than returned,
//! and those with the highest log probability per token are kept. `use_beam_search`, `best_of` as
//! the width and `length_penalty` follow vLLM's API. Whatever would have no effect beside a search
//! is refused at any but its neutral value: a search is not sampled, and it ranks whole sequences,
//! which cannot be streamed nor be cut at a stop string without ranking them anew.

use crate::validation::{Delivery, narrow};
use crate::wire::error::ApiError;
use mini_infer_core::{BeamParams, SamplingParams};

/// The fields of a request that say how its choices are found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchFields {
    pub(crate) use_beam_search: Option<bool>,
    pub(crate) best_of: Option<u32>,
    pub(crate) length_penalty: Option<f64>,
}

/// What else of a request a search has to get along with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchContext<'a> {
    /// How the response is sent.
    pub(crate) delivery: Delivery,
    /// Strings that end a sequence.
    pub(crate) stop: &'a [String],
    /// Most sequences that the engine runs side by side.
    pub(crate) max_num_seqs: u32,
}

impl SearchFields {
    /// Makes `sampling`, validated and without a search, look for choices as the fields ask: with
    /// more sequences than choices, or with beams.
    ///
    /// # Errors
    /// Refuses values out of range and what cannot go together, naming the field.
    pub(crate) fn apply(
        self,
        sampling: &mut SamplingParams,
        context: SearchContext<'_>,
    ) -> Result<(), ApiError> {
        let n = sampling.n;
        if self.best_of.is_some_and(|best_of| best_of < n) {
            return Err(ApiError::invalid("best_of", format!("must be at least n, which is {n}")));
        }
        if self.use_beam_search.unwrap_or(false) {
            sampling.beam = Some(self.beam(sampling, context)?);
            return Ok(());
        }
        if self.length_penalty.is_some_and(|penalty| penalty != 1.0) {
            return Err(ApiError::invalid("length_penalty", "needs `use_beam_search`"));
        }
        let best_of = self.best_of.unwrap_or(n);
        if best_of > SamplingParams::MAX_N {
            let message = format!("must be at most {}", SamplingParams::MAX_N);
            return Err(ApiError::invalid("best_of", message));
        }
        if best_of > n {
            refuse_stream(context.delivery, "best_of")?;
            sampling.n = best_of;
            // Choosing takes the log probabilities, whether the client wants them or not.
            sampling.logprobs = sampling.logprobs.or(Some(0));
        }
        Ok(())
    }

    fn beam(
        self,
        sampling: &SamplingParams,
        context: SearchContext<'_>,
    ) -> Result<BeamParams, ApiError> {
        let width = self.best_of.unwrap_or(sampling.n);
        let max_width = BeamParams::MAX_WIDTH.min(context.max_num_seqs);
        if width > max_width {
            let param = if self.best_of.is_some() { "best_of" } else { "n" };
            let message = format!("must be at most {max_width} beams");
            return Err(ApiError::invalid(param, message));
        }
        let length_penalty = narrow(self.length_penalty.unwrap_or(1.0));
        if !length_penalty.is_finite() {
            return Err(ApiError::invalid("length_penalty", "must be a finite number"));
        }
        refuse_stream(context.delivery, "use_beam_search")?;
        let penalties = sampling.penalties;
        let neutral = [
            ("temperature", [0.0, 1.0].contains(&sampling.temperature), "must be 0, 1"),
            ("top_p", sampling.top_p == 1.0, "must be 1"),
            ("top_k", sampling.top_k.is_none(), "must be -1, 0"),
            ("min_p", sampling.min_p == 0.0, "must be 0"),
            ("typical_p", sampling.typical_p == 1.0, "must be 1"),
            ("xtc_probability", sampling.xtc.probability == 0.0, "must be 0"),
            ("dry_multiplier", sampling.dry.is_none(), "must be 0"),
            ("logit_bias", sampling.logit_bias.is_empty(), "must be empty"),
            ("repetition_penalty", penalties.repetition == 1.0, "must be 1"),
            ("presence_penalty", penalties.presence == 0.0, "must be 0"),
            ("frequency_penalty", penalties.frequency == 0.0, "must be 0"),
            ("min_tokens", sampling.min_tokens == 0, "must be 0"),
            ("stop", context.stop.is_empty(), "must be empty"),
        ];
        for (param, is_neutral, rule) in neutral {
            if !is_neutral {
                let message = format!("{rule} or absent with `use_beam_search`");
                return Err(ApiError::invalid(param, message));
            }
        }
        Ok(BeamParams { width, length_penalty })
    }
}

fn refuse_stream(delivery: Delivery, reason: &str) -> Result<(), ApiError> {
    match delivery {
        Delivery::Whole => Ok(()),
        Delivery::Stream(_) => {
            let message = format!("must be false with `{reason}`: the choice is made at the end");
            Err(ApiError::invalid("stream", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::StreamUsage;

    const STREAM: Delivery = Delivery::Stream(StreamUsage::Absent);

    fn apply(
        fields: SearchFields,
        change: impl FnOnce(&mut SamplingParams),
        context: SearchContext<'_>,
    ) -> Result<SamplingParams, String> {
        let mut sampling = SamplingParams::greedy(4);
        change(&mut sampling);
        match fields.apply(&mut sampling, context) {
            Ok(()) => Ok(sampling),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn whole(
        fields: SearchFields,
        change: impl FnOnce(&mut SamplingParams),
    ) -> Result<SamplingParams, String> {
        apply(
            fields,
            change,
            SearchContext { delivery: Delivery::Whole, stop: &[], max_num_seqs: 99 },
        )
    }

    fn refused(fields: SearchFields, change: impl FnOnce(&mut SamplingParams), expected: &str) {
        assert_eq!(whole(fields, change).unwrap_err(), expected, "{fields:?}");
    }

    fn best_of(best_of: u32) -> SearchFields {
        SearchFields { best_of: Some(best_of), ..SearchFields::default() }
    }

    fn beams(best_of: Option<u32>, length_penalty: Option<f64>) -> SearchFields {
        SearchFields { use_beam_search: Some(true), best_of, length_penalty }
    }

    #[test]
    fn best_of_samples_more_and_keeps_their_log_probabilities() {
        let sampling = whole(best_of(5), |sampling| sampling.n = 2).unwrap();
        assert_eq!((sampling.n, sampling.logprobs, sampling.beam), (5, Some(0), None));
        let sampling = whole(best_of(2), |sampling| sampling.n = 2).unwrap();
        assert_eq!((sampling.n, sampling.logprobs), (2, None));
        refused(best_of(1), |sampling| sampling.n = 2, "best_of");
        refused(best_of(129), |_| {}, "best_of");
        refused(best_of(0), |_| {}, "best_of");
    }

    #[test]
    fn beams_are_as_many_as_best_of_or_n() {
        let width = |fields, n| {
            let sampling = whole(fields, |sampling| sampling.n = n).unwrap();
            assert_eq!(sampling.n, n);
            sampling.beam.unwrap().width
        };
        assert_eq!(width(beams(None, None), 3), 3);
        assert_eq!(width(beams(Some(7), None), 3), 7);
        refused(beams(Some(17), None), |_| {}, "best_of");
        refused(beams(Some(2), None), |sampling| sampling.n = 3, "best_of");
        refused(beams(None, None), |sampling| sampling.n = 17, "n");
    }

    #[test]
    fn a_length_penalty_is_for_beams_and_finite() {
        let penalty = |value| whole(beams(None, Some(value)), |_| {}).map(|s| s.beam.unwrap());
        assert_eq!(penalty(-0.5).unwrap().length_penalty, -0.5);
        assert_eq!(penalty(1e39).unwrap_err(), "length_penalty");
        let alone = |value| SearchFields { length_penalty: Some(value), ..Default::default() };
        assert!(whole(alone(1.0), |_| {}).is_ok());
        refused(alone(0.9), |_| {}, "length_penalty");
    }

    #[test]
    fn beams_refuse_what_would_have_no_effect() {
        assert!(whole(beams(Some(4), None), |sampling| sampling.temperature = 1.0).is_ok());
        let fields = beams(Some(4), None);
        refused(fields, |sampling| sampling.temperature = 0.7, "temperature");
        refused(fields, |sampling| sampling.top_p = 0.9, "top_p");
        refused(fields, |sampling| sampling.top_k = Some(5), "top_k");
        refused(fields, |sampling| sampling.min_p = 0.1, "min_p");
        refused(fields, |sampling| sampling.logit_bias = vec![(0, 1.0)], "logit_bias");
        refused(fields, |sampling| sampling.penalties.repetition = 1.1, "repetition_penalty");
        refused(fields, |sampling| sampling.penalties.presence = 0.1, "presence_penalty");
        refused(fields, |sampling| sampling.penalties.frequency = 0.1, "frequency_penalty");
        refused(fields, |sampling| sampling.typical_p = 0.5, "typical_p");
        refused(fields, |sampling| sampling.xtc.probability = 0.5, "xtc_probability");
        refused(fields, |sampling| sampling.min_tokens = 1, "min_tokens");
        let context =
            SearchContext { delivery: Delivery::Whole, stop: &["x".to_owned()], max_num_seqs: 99 };
        assert_eq!(apply(fields, |_| {}, context).unwrap_err(), "stop");
    }

    #[test]
    fn what_is_chosen_at_the_end_cannot_be_streamed() {
        let streamed = |fields| {
            apply(fields, |_| {}, SearchContext { delivery: STREAM, stop: &[], max_num_seqs: 99 })
        };
        assert_eq!(streamed(best_of(2)).unwrap_err(), "stream");
        assert_eq!(streamed(beams(None, None)).unwrap_err(), "stream");
        assert!(streamed(best_of(1)).is_ok());
    }
}
