//! Which GGUF file to take where a repository or folder holds several.
//!
//! The order is [`PREFERRED`]: first what is small and still close to the original, then what is
//! larger, then the unquantised types. Files that are no whole model are never taken: vision
//! projectors, importance matrices, adapters and pieces of split files.

use crate::error::HubError;

/// Quantisations from the most to the least preferred, as file names spell them.
pub(crate) const PREFERRED: [&str; 13] = [
    "Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q8_0", "Q6_K", "Q5_0", "Q5_1", "Q5_K_M", "Q5_K_S", "BF16",
    "F16", "F32",
];

/// The file taken, and how many there were to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufChoice {
    /// Path of the file as listed.
    pub(crate) file: String,
    /// Number of files that are whole models.
    pub(crate) num_candidates: usize,
}

/// Chooses among the `files` of `place`: the one `wanted` by path or quantisation, else the most
/// preferred one.
///
/// # Errors
///
/// [`HubError::FileNotFound`] where the wanted one is absent, [`HubError::NoModel`] where none is a
/// whole model, [`HubError::AmbiguousModel`] where several are and none is preferred.
pub(crate) fn choose_gguf(
    place: &str,
    files: &[&str],
    wanted: Option<&str>,
) -> Result<GgufChoice, HubError> {
    let candidates: Vec<&str> = files.iter().copied().filter(|file| is_whole_model(file)).collect();
    let choice =
        |file: &str| GgufChoice { file: file.to_owned(), num_candidates: candidates.len() };
    let first_of = |quantisation: &str| {
        candidates.iter().copied().find(|file| has_quantisation(file, quantisation))
    };
    if let Some(wanted) = wanted {
        let exact = files.iter().copied().find(|file| *file == wanted && is_gguf(file));
        return exact.or_else(|| first_of(wanted)).map(choice).ok_or_else(|| {
            let available = candidates.iter().map(|&file| file.to_owned()).collect();
            HubError::FileNotFound { place: place.to_owned(), file: wanted.to_owned(), available }
        });
    }
    match candidates.as_slice() {
        [] => Err(HubError::NoModel { place: place.to_owned() }),
        [only] => Ok(choice(only)),
        several => PREFERRED.iter().find_map(|name| first_of(name)).map(choice).ok_or_else(|| {
            let files = several.iter().map(|&file| file.to_owned()).collect();
            HubError::AmbiguousModel { place: place.to_owned(), files }
        }),
    }
}

/// Tells whether the file is named as a GGUF file.
pub(crate) fn is_gguf(file: &str) -> bool {
    file.to_ascii_lowercase().ends_with(".gguf")
}

fn is_whole_model(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    let is_companion = ["mmproj", "imatrix", "lora", "adapter"].iter().any(|w| name.contains(w));
    is_gguf(&name) && !is_companion && !is_split_piece(&name)
}

/// Tells whether the name ends as the pieces of a split file do: `-00001-of-00003.gguf`.
fn is_split_piece(name: &str) -> bool {
    let stem = name.trim_end_matches(".gguf");
    let Some((first, total)) = stem.rsplit_once("-of-") else { return false };
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(total) && first.rsplit('-').next().is_some_and(is_number)
}

/// Tells whether the file's name holds the quantisation as a word of its own, in any case.
fn has_quantisation(file: &str, quantisation: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_uppercase();
    let quantisation = quantisation.to_ascii_uppercase();
    if quantisation.is_empty() {
        return false;
    }
    name.match_indices(&quantisation).any(|(start, _)| {
        let before = name[..start].bytes().next_back();
        let after = name[start + quantisation.len()..].bytes().next();
        // `Q4_K` is no word of `Q4_K_M`, but `model_Q4_K_M` is a name in use.
        before.is_none_or(|byte| !byte.is_ascii_alphanumeric())
            && after.is_none_or(|byte| !byte.is_ascii_alphanumeric() && byte != b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[&str], wanted: Option<&str>, expected: &str) {
        assert_eq!(choose_gguf("place", files, wanted).unwrap().file, expected);
    }

    #[test]
    fn most_preferred_quantisation_is_taken() {
        check(&["m-q8_0.gguf", "m-q4_0.gguf", "m-f16.gguf"], None, "m-q4_0.gguf");
        check(&["m.Q4_0.gguf", "m_Q4_K_M.gguf", "m.Q4_K_S.gguf"], None, "m_Q4_K_M.gguf");
        check(&["m.IQ4_XS.gguf", "sub/m-Q8_0.gguf"], None, "sub/m-Q8_0.gguf");
    }

    #[test]
    fn wanted_file_is_found_by_path_or_quantisation() {
        let files = ["m.Q4_K_M.gguf", "m.Q8_0.gguf", "m.IQ4_XS.gguf"];
        check(&files, Some("m.Q8_0.gguf"), "m.Q8_0.gguf");
        check(&files, Some("iq4_xs"), "m.IQ4_XS.gguf");
    }

    #[test]
    fn absent_file_is_answered_with_those_that_are_there() {
        let error = choose_gguf("place", &["m.Q4_K_M.gguf"], Some("Q4_K")).unwrap_err();
        assert!(error.to_string().contains("m.Q4_K_M.gguf"), "{error}");
    }

    #[test]
    fn files_that_are_no_whole_model_are_passed_over() {
        let files = ["mmproj-m-F16.gguf", "m-Q4_0-00001-of-00002.gguf", "README.md", "m-Q2_K.gguf"];
        check(&files, None, "m-Q2_K.gguf");
        let error = choose_gguf("place", &files[..3], None).unwrap_err();
        assert!(matches!(error, HubError::NoModel { .. }));
    }

    #[test]
    fn several_files_without_a_preferred_one_are_listed() {
        let error = choose_gguf("place", &["a.gguf", "b.gguf"], None).unwrap_err();
        assert!(error.to_string().contains("a.gguf, b.gguf"), "{error}");
    }
}
