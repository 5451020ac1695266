use baton_graph::testing::Random;
use baton_graph::{Limits, SeqId, Span};

use super::*;

const LIMITS: Limits = Limits { context: 1000, kv_tokens: 4000, batch_tokens: 600 };

fn span(seq: u32, tokens: usize, rows: Rows) -> Span {
    Span { seq: SeqId(seq), tokens: (0..tokens as u32).collect(), rows }
}

/// A pager that holds `held` tokens of each of the batch's sequences, and then the batch.
fn appended(batch: &Batch, held: &[usize]) -> Pager {
    let mut pager = Pager::new(PAGE, &LIMITS);
    for (span, &held) in batch.spans.iter().zip(held) {
        pager.append(&[(span.seq, held)]).unwrap();
    }
    pager.append_batch(batch).unwrap();
    pager
}

#[test]
fn batches_are_cut_into_passes_that_fit_and_lose_nothing() {
    let mut random = Random::new(1);
    for _ in 0..200 {
        let mut spans = Vec::new();
        let mut held = Vec::new();
        for seq in 0..1 + random.below(4) as u32 {
            let rows = [Rows::None, Rows::Last, Rows::All][random.below(3)];
            spans.push(span(seq, 1 + random.below(150), rows));
            held.push(random.below(300));
        }
        let batch = Batch { spans };
        let pager = appended(&batch, &held);
        let room = Room {
            rows: 1 + random.below(200),
            wanted: 1 + random.below(50),
            pages: 16 + random.below(20),
            tile: 16,
        };
        let mut seen = vec![0; batch.spans.len()];
        let mut origins = Vec::new();
        let mut tables = Tables::default();
        for pieces in passes(&batch, &pager, &room, true) {
            for piece in &pieces {
                assert_eq!(piece.start, seen[piece.span], "pieces come in order");
                seen[piece.span] += piece.tokens;
            }
            tables.set(&batch, &pieces, &pager, &room, None);
            let Sizes { tokens, wanted, lone, parts, .. } = tables.sizes;
            assert!(tokens as usize <= room.rows && wanted as usize <= room.wanted);
            assert!(tables.words.len() <= room.words());
            assert!((lone * parts) as usize <= room.parts());
            origins.extend_from_slice(&tables.origins);
        }
        let lens: Vec<usize> = batch.spans.iter().map(|span| span.tokens.len()).collect();
        assert_eq!(seen, lens);
        let expected: Vec<LogitRow> = batch.wanted_rows().into_iter().map(|(_, row)| row).collect();
        assert_eq!(origins, expected);
    }
}

#[test]
fn whole_texts_are_not_cut() {
    let spans = [40, 60, 100, 1, 99].map(|n| span(n as u32, n, Rows::All)).to_vec();
    let batch = Batch { spans };
    let pager = appended(&batch, &[0; 5]);
    let room = Room { rows: 100, wanted: 100, pages: 20, tile: 32 };
    let passes = passes(&batch, &pager, &room, false);
    let sizes: Vec<Vec<usize>> =
        passes.iter().map(|pass| pass.iter().map(|piece| piece.tokens).collect()).collect();
    assert_eq!(sizes, [vec![40, 60], vec![100], vec![1, 99]]);
}

#[test]
fn tables_say_where_tokens_are() {
    let batch = Batch { spans: vec![span(3, 2, Rows::Last), span(5, 70, Rows::None)] };
    let pager = appended(&batch, &[100, 0]);
    let room = Room { rows: 100, wanted: 100, pages: 20, tile: 32 };
    let mut tables = Tables::default();
    let pieces = &passes(&batch, &pager, &room, true)[0];
    tables.set(&batch, pieces, &pager, &room, Some(9));
    let sizes = Sizes {
        tokens: 72,
        wanted: 1,
        lone: 2,
        parts: 1,
        tiles: 3,
        best: true,
        ..Sizes::default()
    };
    assert_eq!(tables.sizes, sizes);
    let at = |table: usize| tables.words[table] as usize;
    assert_eq!(tables.words[at(2)], 1, "the row of logits is the second token");
    let token = |row: usize| &tables.words[HEADER + 4 * row..][..4];
    let (page, inside) = pager.locate(SeqId(3), 101);
    let place = page.0 * PAGE as u32 + inside as u32;
    assert_eq!(token(1)[..3], [101, place, 102], "position, place and end");
    assert_eq!(tables.words[token(1)[3] as usize + 1], page.0, "its list of pages");
    assert_eq!(token(2)[0], 0, "the other sequence begins");
    let (page, _) = pager.locate(SeqId(5), 69);
    let spans = &tables.words[at(4)..][..8];
    assert_eq!((&spans[..3], &spans[4..7]), (&[0, 2, 100][..], &[2, 70, 0][..]));
    assert_eq!(tables.words[spans[7] as usize + 1], page.0, "the list of a span");
    assert_eq!(tables.words[at(6)..][..2], [0, 1], "lone rows");
    assert_eq!(tables.words[at(7)..][..6], [1, 0, 1, 32, 1, 64], "tiles");
    assert_eq!(tables.words[10..12], [1, 9], "some rows are in tiles; best tokens");
}
