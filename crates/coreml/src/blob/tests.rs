use super::*;
use crate::mil::Data;

fn offset(value: &Value) -> u64 {
    match &value.data {
        Data::Blob(blob) => blob.offset,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_in_pieces_is_the_one_in_a_piece() {
    let data: Vec<u8> = (0..20).collect();
    let mut whole = in_memory();
    whole.add(DataType::Float16, &[10], &data).unwrap();
    let mut pieces = in_memory();
    let chunks = data.chunks(8).map(|piece| Ok::<_, std::io::Error>(piece.to_vec()));
    let value = pieces.add_pieces(DataType::Float16, &[10], chunks).unwrap();
    assert_eq!(offset(&value), 64);
    let after = pieces.add(DataType::Int8, &[1], &[7]).unwrap();
    assert_eq!(offset(&after), 192);
    let [whole, pieces] = [whole, pieces].map(|w| w.finish().unwrap().into_inner());
    assert_eq!(pieces[64..148], whole[64..]);
}

#[test]
fn records_lie_where_the_format_says() {
    let mut writer = in_memory();
    assert!(writer.is_empty());
    let int4 = writer.add(DataType::Int4, &[5], &[0x78, 0xf1, 0x03]).unwrap();
    let scale = writer.add(DataType::Float16, &[1], &[0x00, 0x3c]).unwrap();
    assert_eq!((offset(&int4), offset(&scale)), (64, 192));
    let bytes = writer.finish().unwrap().into_inner();
    assert_eq!(bytes.len(), 258);
    assert_eq!(bytes[..8], [2, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes[64..72], [0xef, 0xbe, 0xad, 0xde, 8, 0, 0, 0]);
    assert_eq!(bytes[72..96], [3u64, 128, 4].map(u64::to_le_bytes).concat()[..]);
    assert_eq!(bytes[128..132], [0x78, 0xf1, 0x03, 0]);
    let blobs = Blobs::from_bytes(bytes).unwrap();
    let read = blobs.read(64, int4.ty.tensor().unwrap()).unwrap();
    assert_eq!(read[..], [0x78, 0xf1, 0x03]);
}

#[test]
fn equal_tensors_are_one_record_and_others_are_not() {
    let mut writer = in_memory();
    let first = writer.add(DataType::UInt4, &[2, 3], &[1, 2, 3]).unwrap();
    let again = writer.add(DataType::UInt4, &[3, 2], &[1, 2, 3]).unwrap();
    let shorter = writer.add(DataType::UInt4, &[5], &[1, 2, 3]).unwrap();
    let typed = writer.add(DataType::Int4, &[6], &[1, 2, 3]).unwrap();
    assert_eq!(offset(&first), offset(&again));
    assert!(offset(&first) != offset(&shorter) && offset(&shorter) != offset(&typed));
}

#[test]
fn a_damaged_file_is_refused() {
    let mut writer = in_memory();
    let value = writer.add(DataType::Float16, &[2], &[0, 1, 2, 3]).unwrap();
    let ty = value.ty.tensor().unwrap().clone();
    let whole = writer.finish().unwrap().into_inner();
    for n in 0..whole.len() {
        let blobs = Blobs::from_bytes(whole[..n].to_vec());
        assert!(blobs.and_then(|blobs| blobs.read(64, &ty)).is_err(), "{n} bytes");
    }
    let blobs = Blobs::from_bytes(whole.clone()).unwrap();
    for wrong in [0, 63, 65, 128, u64::MAX, u64::MAX - 63] {
        assert!(blobs.read(wrong, &ty).is_err(), "at {wrong}");
    }
    for wrong in [
        TensorType::new(DataType::Float16, &[3]),
        TensorType::new(DataType::Float32, &[1]),
        TensorType::new(DataType::Float16, &[usize::MAX, 2]),
    ] {
        assert!(blobs.check(64, &wrong).is_err(), "as {wrong}");
    }
    for (at, value) in [(4, 1), (9, 1), (64, 0), (68, 9), (72, 255), (79, 1), (80, 0), (88, 9)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        let blobs = Blobs::from_bytes(bytes);
        assert!(blobs.and_then(|blobs| blobs.read(64, &ty)).is_err(), "byte {at}");
    }
}
