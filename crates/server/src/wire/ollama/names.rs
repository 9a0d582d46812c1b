//! What fields are called here and in the requests that are made of them.

use crate::wire::error::ApiError;

/// OpenAI's name and Ollama's.
const NAMES: &[(&str, &str)] = &[
    ("frequency_penalty", "options.frequency_penalty"),
    ("guided_json", "format"),
    ("max_tokens", "options.num_predict"),
    ("min_p", "options.min_p"),
    ("presence_penalty", "options.presence_penalty"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("response_format", "format"),
    ("seed", "options.seed"),
    ("stop", "options.stop"),
    ("temperature", "options.temperature"),
    ("top_k", "options.top_k"),
    ("top_p", "options.top_p"),
    ("typical_p", "options.typical_p"),
];

/// Names the field of an error as Ollama's API does.
pub(crate) fn own_name(error: ApiError) -> ApiError {
    let ApiError::InvalidField { param, message } = error else { return error };
    let end = param.find(['.', '[']).unwrap_or(param.len());
    let (head, rest) = param.split_at(end);
    let own = NAMES.iter().find(|(theirs, _)| *theirs == head).map_or(head, |(_, own)| *own);
    let rest = match head {
        "messages" => rest.replace(".reasoning_content", ".thinking"),
        _ => rest.to_owned(),
    };
    ApiError::InvalidField { param: format!("{own}{rest}"), message }
}

/// Names the field of an error where the conversation was made of a prompt.
pub(crate) fn own_name_of_prompt(error: ApiError) -> ApiError {
    let error = own_name(error);
    let ApiError::InvalidField { param, message } = error else { return error };
    let is_prompt = param.starts_with("messages");
    ApiError::InvalidField { param: if is_prompt { "prompt".to_owned() } else { param }, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_the_client_knows_them() {
        let own = |param: &str| {
            let error = own_name(ApiError::invalid(param, "x"));
            let ApiError::InvalidField { param, .. } = error else { panic!("{error:?}") };
            param
        };
        assert_eq!(own("temperature"), "options.temperature");
        assert_eq!(own("guided_json.properties.a"), "format.properties.a");
        assert_eq!(own("messages[1].reasoning_content"), "messages[1].thinking");
        assert_eq!(own("tools[0].function.name"), "tools[0].function.name");
        assert!(NAMES.is_sorted());
    }
}
