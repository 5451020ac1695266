use baton_weights::Value;

use super::*;

/// Metadata of a vocabulary: tokens with their types and scores, and merges.
fn metadata(model: &str, tokens: &[(&str, i32, f32)], merges: &[&str]) -> Metadata {
    let mut metadata = Metadata::new();
    let mut set = |key: &str, value| _ = metadata.insert(format!("tokenizer.ggml.{key}"), value);
    set("model", Value::Str(model.to_owned()));
    set("tokens", Value::Array(Array::Str(tokens.iter().map(|token| token.0).collect())));
    set("token_type", Value::Array(Array::I32(tokens.iter().map(|token| token.1).collect())));
    set("scores", Value::Array(Array::F32(tokens.iter().map(|token| token.2).collect())));
    if !merges.is_empty() {
        set("merges", Value::Array(Array::Str(merges.iter().collect())));
    }
    metadata
}

fn set(metadata: &mut Metadata, key: &str, value: Value) {
    metadata.insert(format!("tokenizer.ggml.{key}"), value);
}

/// `<s>`, `</s>` and pieces from which `Hi` and ` Hi` can be made; no token for `!`.
fn sentence_piece() -> Metadata {
    let mut metadata = metadata(
        "llama",
        &[
            ("<unk>", 2, 0.0),
            ("<s>", 3, 0.0),
            ("</s>", 3, 0.0),
            ("<0x21>", 6, 0.0),
            ("▁", 1, -9.0),
            ("H", 1, -9.0),
            ("i", 1, -9.0),
            ("Hi", 1, -1.0),
            ("▁Hi", 1, -2.0),
            ("<tag>", 4, 0.0),
        ],
        &[],
    );
    set(&mut metadata, "bos_token_id", Value::U32(1));
    set(&mut metadata, "eos_token_id", Value::U32(2));
    metadata
}

#[test]
fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece()).unwrap();
    assert_eq!(tokenizer.encode("Hi Hi!", true).unwrap(), [1, 8, 8, 3]);
    assert_eq!(tokenizer.encode("Hi<tag>", false).unwrap(), [8, 9]);
    assert_eq!(tokenizer.encode("é", false).unwrap(), [4, 0], "no bytes for it");
    assert_eq!(tokenizer.decode(&[1, 8, 8, 3, 2], true), "Hi Hi!");
    assert_eq!(tokenizer.decode(&[1, 8], false), "<s> Hi");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()), (Some(1), Some(2), true));
    assert_eq!(tokenizer.eog().iter().copied().collect::<Vec<_>>(), [2]);
}

#[test]
fn text_of_users_cannot_name_control_tokens() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece()).unwrap();
    assert_eq!(tokenizer.encode("</s>", false).unwrap(), [2]);
    assert!(!tokenizer.encode_as_text("</s>", false).unwrap().contains(&2));
}

#[test]
fn bos_is_never_doubled() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece()).unwrap();
    assert_eq!(tokenizer.encode("<s>Hi", true).unwrap(), [1, 8]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
}

#[test]
fn the_file_decides_on_bos_and_the_leading_space() {
    let mut metadata = sentence_piece();
    set(&mut metadata, "add_bos_token", Value::Bool(false));
    set(&mut metadata, "add_eos_token", Value::Bool(true));
    set(&mut metadata, "add_space_prefix", Value::Bool(false));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("Hi", true).unwrap(), [7, 2]);
    assert_eq!(tokenizer.decode(&[8], true), " Hi");
}

#[test]
fn byte_pairs_follow_the_list_of_merges() {
    let tokens =
        [("a", 1, 0.0), ("b", 1, 0.0), ("Ġ", 1, 0.0), ("ab", 1, 0.0), ("<|im_end|>", 4, 0.0)];
    let mut metadata = metadata("gpt2", &tokens, &["a b", "a missing", "broken"]);
    set(&mut metadata, "pre", Value::Str("smollm".into()));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("ab ab<|im_end|>", true).unwrap(), [3, 2, 3, 4]);
    // A file that forgot to mark the end of a turn as a control token.
    assert!(tokenizer.eog().contains(&4) && tokenizer.is_control(4));
    assert_eq!(tokenizer.decode(&[3, 4], true), "ab");
}

#[test]
fn unigram_takes_the_likeliest_pieces() {
    let tokens = [
        ("<pad>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("<unk>", 2, 0.0),
        ("▁a", 1, -2.0),
        ("b", 1, -3.0),
        ("▁ab", 1, -6.0),
    ];
    let mut metadata = metadata("t5", &tokens, &[]);
    set(&mut metadata, "eos_token_id", Value::U32(1));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("ab a", true).unwrap(), [3, 4, 3, 1]);
    assert_eq!(tokenizer.decode(&[3, 4, 3, 1], true), "ab a");
}

#[test]
fn word_pieces_get_their_own_spelling_back() {
    let tokens = [
        ("[UNK]", 3, 0.0),
        ("[CLS]", 3, 0.0),
        ("[SEP]", 3, 0.0),
        ("▁play", 1, 0.0),
        ("ing", 1, 0.0),
        ("▁.", 1, 0.0),
    ];
    let mut metadata = metadata("bert", &tokens, &[]);
    set(&mut metadata, "unknown_token_id", Value::U32(0));
    set(&mut metadata, "cls_token_id", Value::U32(1));
    set(&mut metadata, "seperator_token_id", Value::U32(2));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("Playing. xyz", true).unwrap(), [1, 3, 4, 5, 0, 2]);
    assert_eq!(tokenizer.decode(&[1, 3, 4, 5, 2], true), "playing.");
}

#[test]
fn a_text_is_cut_inside_the_models_own_tokens() {
    let mut metadata = sentence_piece();
    set(&mut metadata, "add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let whole = tokenizer.encode("Hi Hi Hi", true).unwrap();
    assert_eq!(whole, [1, 8, 8, 8, 2]);
    for (most, cut) in
        [(9, &whole[..]), (5, &whole), (4, &[1, 8, 8, 2]), (2, &[1, 2]), (0, &[1, 2])]
    {
        let mut ids = whole.clone();
        tokenizer.truncate(&mut ids, most);
        assert_eq!(ids, cut, "to {most}");
    }
}

#[test]
fn damaged_metadata_is_an_error() {
    let error = |metadata: &Metadata| Tokenizer::from_gguf(metadata).unwrap_err();
    assert!(matches!(error(&Metadata::new()), Error::Metadata(_)));
    assert!(matches!(error(&metadata("llama", &[], &[])), Error::BadMetadata { .. }));
    assert!(matches!(
        error(&metadata("rwkv", &[("a", 1, 0.0)], &[])),
        Error::Unsupported { what: "tokenizer model", .. }
    ));

    let mut short = sentence_piece();
    set(&mut short, "token_type", Value::Array(Array::I32(vec![1])));
    assert!(matches!(error(&short), Error::BadMetadata { .. }));

    let mut unnamed = metadata("gpt2", &[("a", 1, 0.0)], &["a a"]);
    set(&mut unnamed, "pre", Value::Str("someone-elses".into()));
    assert!(matches!(error(&unnamed), Error::Unsupported { what: "pre-tokenizer", .. }));

    let nan = metadata("t5", &[("a", 1, f32::NAN), ("b", 1, 0.0), ("c", 2, 0.0)], &[]);
    assert!(matches!(error(&nan), Error::BadMetadata { .. }));

    let no_merges = metadata("gpt2", &[("a", 1, 0.0)], &[]);
    assert!(matches!(error(&no_merges), Error::Metadata(_)));
}

#[test]
fn tokens_that_are_spelled_alike_keep_their_ids() {
    let tokens = [("<unk>", 2, 0.0), ("a", 1, 0.0), ("b", 1, 0.0), ("a", 1, 0.0)];
    let mut metadata = metadata("llama", &tokens, &[]);
    set(&mut metadata, "bos_token_id", Value::U32(3));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.vocab_size(), 4);
    assert_eq!(tokenizer.decode(&[2, 1, 3], false), "baa");
}

#[test]
fn ids_outside_the_vocabulary_are_ignored() {
    let mut metadata = sentence_piece();
    set(&mut metadata, "bos_token_id", Value::U32(u32::MAX));
    set(&mut metadata, "eot_token_id", Value::U32(99));
    set(&mut metadata, "unknown_token_id", Value::U32(1 << 30));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.encode("Hi", true).unwrap(), [8]);
}
