use super::*;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);

fn pager() -> Pager {
    Pager::new(4, &Limits { context: 12, kv_tokens: 16, batch_tokens: 16 })
}

#[test]
fn pages_are_taken_as_a_sequence_grows_and_given_back() {
    let mut pager = pager();
    assert!(pager.append(&[(A, 5)]).unwrap().is_empty());
    assert_eq!((pager.table(A).len(), pager.free_pages()), (2, 2));
    pager.append(&[(A, 3)]).unwrap();
    assert_eq!(pager.free_pages(), 2);
    pager.truncate(A, 4).unwrap();
    assert_eq!((pager.len(A), pager.free_pages()), (4, 3));
    pager.free(A);
    assert_eq!(pager.free_pages(), 4);
}

#[test]
fn a_shared_page_is_copied_by_its_first_writer_only() {
    let mut pager = pager();
    pager.append(&[(A, 6)]).unwrap();
    pager.copy(A, B, 6).unwrap();
    assert_eq!(pager.free_pages(), 2);
    let shared = pager.table(A)[1];
    let copies = pager.append(&[(B, 1), (A, 1)]).unwrap();
    assert_eq!(copies, [PageCopy { from: shared, to: pager.table(B)[1], tokens: 2 }]);
    assert_eq!(pager.table(A)[1], shared);
    assert_eq!(pager.table(A)[0], pager.table(B)[0]);
    pager.free(A);
    pager.free(B);
    assert_eq!(pager.free_pages(), 4);
}

#[test]
fn a_shorter_copy_does_not_disturb_the_longer_owner() {
    let mut pager = pager();
    pager.append(&[(A, 6)]).unwrap();
    pager.copy(A, B, 5).unwrap();
    let copies = pager.append(&[(B, 2)]).unwrap();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].tokens, 1);
}

#[test]
fn failures_change_nothing() {
    let mut pager = pager();
    pager.append(&[(A, 6)]).unwrap();
    let full = pager.append(&[(B, 1), (A, 7)]).unwrap_err();
    assert!(matches!(full, ExecError::ContextFull { len: 6, new: 7, context: 12, .. }));
    let short = pager.append(&[(A, 2), (B, 9)]).unwrap_err();
    assert!(matches!(short, ExecError::OutOfPages { needed: 1, free: 2, .. }));
    assert_eq!((pager.len(A), pager.len(B), pager.free_pages()), (6, 0, 2));
    assert!(pager.truncate(A, 7).is_err());
    assert!(pager.copy(A, A, 1).is_err());
    assert!(pager.copy(A, B, 7).is_err());
}

#[test]
fn spare_positions_need_no_page_and_no_copy() {
    let mut pager = Pager::new(4, &Limits { context: 7, kv_tokens: 16, batch_tokens: 16 });
    assert_eq!(pager.spare(A), 0, "it holds nothing");
    pager.append(&[(A, 2)]).unwrap();
    assert_eq!(pager.spare(A), 2);
    pager.copy(A, B, 2).unwrap();
    assert_eq!((pager.spare(A), pager.spare(B)), (0, 0), "the page is shared");
    pager.free(B);
    pager.append(&[(A, 2)]).unwrap();
    assert_eq!(pager.spare(A), 0, "the page is full");
    pager.append(&[(A, 1)]).unwrap();
    assert_eq!(pager.spare(A), 2, "the context ends before the page");
}
