use super::*;

fn mapping(ssn: u64, len: u64, dsn: u64) -> RxMapping {
    RxMapping {
        ssn: Ssn(ssn),
        len,
        dsn: Dsn(dsn),
        wire_dsn: dsn,
        unmapped: 0,
        wire_len: len as u16,
        checksum: None,
        coded: None,
    }
}

fn translate(
    rx: &mut MappingRx,
    ssn: u64,
    bytes: &[u8],
) -> Result<Vec<(u64, Vec<u8>)>, MappingError> {
    let mut out = Vec::new();
    rx.translate(Ssn(ssn), bytes, &mut |dsn, b| out.push((dsn.0, b.to_vec())))?;
    Ok(out)
}

#[test]
fn one_mapping_may_cover_many_segments_and_one_segment_many_mappings() {
    let mut rx = MappingRx::new(8, 12);
    rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
    rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
    rx.announce(mapping(5, 2, 50), Ssn(1)).unwrap();
    assert_eq!(translate(&mut rx, 1, &[1, 2]).unwrap(), [(100, vec![1, 2])]);
    assert_eq!(
        translate(&mut rx, 3, &[3, 4, 5, 6]).unwrap(),
        [(102, vec![3, 4]), (50, vec![5, 6])]
    );
    assert_eq!(translate(&mut rx, 7, &[7]), Err(MappingError::Unmapped));
}

#[test]
fn mappings_that_continue_each_other_are_one() {
    let mut rx = MappingRx::new(3, 12);
    for (ssn, dsn) in [(1, 100), (11, 110), (31, 130), (41, 140), (61, 170)] {
        rx.announce(mapping(ssn, 10, dsn), Ssn(1)).unwrap();
    }
    assert_eq!(rx.count(), 3, "two gaps");
    rx.announce(mapping(21, 10, 120), Ssn(1)).unwrap();
    assert_eq!(rx.count(), 2);
    rx.announce(mapping(51, 10, 160), Ssn(1)).unwrap();
    assert_eq!(rx.count(), 2, "a part of what follows");
    // A mapping may be announced again, in whole or in part, but not differently.
    assert_eq!(rx.announce(mapping(21, 10, 120), Ssn(1)), Ok(()));
    assert_eq!(rx.announce(mapping(35, 10, 135), Ssn(1)), Err(MappingError::Contradiction));
    assert_eq!(rx.announce(mapping(45, 10, 144), Ssn(1)), Err(MappingError::Contradiction));
    let bytes: Vec<u8> = (1..71).collect();
    let out = translate(&mut rx, 1, &bytes).unwrap();
    assert_eq!(out, [(100, bytes[..50].to_vec()), (160, bytes[50..].to_vec())]);
    // With a checksum each is verified separately.
    let checked = |ssn, dsn| RxMapping { checksum: Some(0), ..mapping(ssn, 10, dsn) };
    rx.announce(checked(71, 0), Ssn(71)).unwrap();
    rx.announce(checked(81, 10), Ssn(71)).unwrap();
    assert_eq!(rx.count(), 2);
}

#[test]
fn an_infinite_mapping_keeps_earlier_mappings() {
    let mut rx = MappingRx::new(3, 12);
    rx.announce(mapping(1, 10, 100), Ssn(1)).unwrap();
    rx.announce(mapping(11, 10, 110), Ssn(1)).unwrap();
    rx.set_infinite(Ssn(11), Dsn(500));
    assert_eq!(translate(&mut rx, 1, &[0; 11]).unwrap(), [(100, vec![0; 10]), (500, vec![0])]);
}

#[test]
fn a_mapping_never_changes() {
    let mut rx = MappingRx::new(2, 12);
    rx.announce(mapping(1, 10, 100), Ssn(1)).unwrap();
    assert_eq!(rx.announce(mapping(1, 10, 101), Ssn(1)), Err(MappingError::Contradiction));
    assert_eq!(rx.announce(mapping(5, 10, 104), Ssn(1)), Err(MappingError::Contradiction));
    assert_eq!(rx.announce(mapping(4, 3, 103), Ssn(1)), Ok(()));
    rx.announce(mapping(11, 10, 90), Ssn(1)).unwrap();
    assert_eq!(rx.announce(mapping(40, 10, 140), Ssn(1)), Err(MappingError::TooMany));
    assert_eq!(rx.announce(mapping(1, 4, 9), Ssn(5)), Ok(()));
    let mut late = MappingRx::new(2, 12);
    assert_eq!(late.announce(mapping(3, 4, 9), Ssn(5)), Err(MappingError::Contradiction));
}

#[test]
fn a_checksummed_mapping_is_delivered_whole_or_not_at_all() {
    let mut rx = MappingRx::new(8, 12);
    let sum = dss_checksum(100, 1, 4, Checksum::of(&[1, 2, 3, 4]));
    rx.announce(RxMapping { checksum: Some(sum), ..mapping(1, 4, 100) }, Ssn(1)).unwrap();
    assert!(translate(&mut rx, 1, &[1, 2, 3]).unwrap().is_empty());
    assert_eq!(translate(&mut rx, 4, &[4]).unwrap(), [(100, vec![1, 2, 3, 4])]);
    rx.announce(RxMapping { checksum: Some(sum ^ 1), ..mapping(5, 4, 104) }, Ssn(5)).unwrap();
    assert_eq!(translate(&mut rx, 5, &[1, 2, 3, 4]), Err(MappingError::BadChecksum(Dsn(104))));
}

#[test]
fn data_after_a_failed_mapping_is_kept_until_an_infinite_mapping() {
    let mut rx = MappingRx::new(8, 12);
    rx.announce(RxMapping { checksum: Some(1), ..mapping(1, 4, 0) }, Ssn(1)).unwrap();
    assert!(translate(&mut rx, 1, &[1, 2]).unwrap().is_empty());
    let failed = translate(&mut rx, 3, &[3, 4, 5]);
    assert_eq!(failed, Err(MappingError::BadChecksum(Dsn(0))));
    rx.announce(mapping(6, 1, 5), Ssn(6)).unwrap();
    assert!(translate(&mut rx, 6, &[6]).unwrap().is_empty());
    assert_eq!((rx.kept_bytes(), rx.failed_at()), (Some(6), Some(Dsn(0))));
    assert_eq!(translate(&mut rx, 7, &[0; 7]), Err(MappingError::Overflow));
    assert_eq!(rx.set_infinite(Ssn(90), Dsn(99)), Some((Dsn(0), vec![1, 2, 3, 4, 5, 6])));
    assert_eq!(translate(&mut rx, 7, &[7]).unwrap(), [(6, vec![7])]);
}

/// A repair of 4 bytes at `ssn` over 9 bytes that start at DSN 100.
fn coded(ssn: u64) -> RxMapping {
    RxMapping { coded: Some(RepairFields { span: 9, row: 3 }), ..mapping(ssn, 4, 100) }
}

#[test]
fn a_repair_is_given_out_whole_and_never_as_data() {
    let mut rx = MappingRx::new(8, 12);
    rx.announce(coded(1), Ssn(1)).unwrap();
    rx.announce(mapping(5, 2, 50), Ssn(1)).unwrap();
    assert!(translate(&mut rx, 1, &[1, 2, 3]).unwrap().is_empty());
    assert!(rx.take_repairs().is_empty(), "it is incomplete");
    assert_eq!(translate(&mut rx, 4, &[4, 5, 6]).unwrap(), [(50, vec![5, 6])]);
    let range = DataRange::new(Dsn(100), Dsn(109));
    let repair = Repair { range, symbol: 4, row: 3 };
    assert_eq!(rx.take_repairs(), [(repair, vec![1, 2, 3, 4])]);
}

#[test]
fn a_repair_with_a_wrong_checksum_is_dropped_and_nothing_else() {
    let mut rx = MappingRx::new(8, 12);
    let wire =
        MpRepair { ssn: 1, length: 4, dsn: 100, span: 9, row: 3, data_ack: 0, checksum: None };
    let sum = repair_checksum(&wire, 100, 1, Checksum::of(&[1, 2, 3, 4]));
    for (checksum, given) in [(sum ^ 1, 0), (sum, 1)] {
        let mut rx = MappingRx::new(8, 12);
        rx.announce(RxMapping { checksum: Some(checksum), ..coded(1) }, Ssn(1)).unwrap();
        assert_eq!(translate(&mut rx, 1, &[1, 2, 3, 4]), Ok(Vec::new()));
        assert_eq!((rx.take_repairs().len(), rx.failed_at()), (given, None));
    }
    rx.announce(mapping(1, 2, 50), Ssn(1)).unwrap();
    assert_eq!(translate(&mut rx, 1, &[5, 6]).unwrap(), [(50, vec![5, 6])]);
}

#[test]
fn data_behind_a_gap_can_be_peeked_and_arrives_again_in_order() {
    let mut rx = MappingRx::new(8, 12);
    rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
    rx.announce(mapping(5, 4, 204), Ssn(1)).unwrap();
    rx.announce(coded(9), Ssn(1)).unwrap();
    let mut seen = Vec::new();
    rx.peek(Ssn(3), &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &mut |dsn, bytes| {
        seen.push((dsn.0, bytes.to_vec()));
    });
    assert_eq!(seen, [(102, vec![3, 4]), (204, vec![5, 6, 7, 8])]);
    assert_eq!(rx.take_repairs().len(), 1);
    let all = translate(&mut rx, 1, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(all, [(100, vec![1, 2, 3, 4]), (204, vec![5, 6, 7, 8])]);
    // With checksums only whole mappings are accepted.
    let sum = dss_checksum(7, 9, 4, Checksum::of(&[1, 2, 3, 4]));
    let mut rx = MappingRx::new(8, 12);
    rx.announce(RxMapping { checksum: Some(sum), ..mapping(9, 4, 7) }, Ssn(1)).unwrap();
    rx.peek(Ssn(10), &[2, 3, 4], &mut |_, _| panic!("a part"));
    rx.peek(Ssn(9), &[1, 2, 3, 5], &mut |_, _| panic!("wrong"));
    let mut whole = 0;
    rx.peek(Ssn(9), &[1, 2, 3, 4], &mut |_, bytes| whole += bytes.len());
    assert_eq!(whole, 4);
}

#[test]
fn after_an_infinite_mapping_positions_map_one_to_one() {
    let mut rx = MappingRx::new(8, 12);
    rx.announce(mapping(1, 4, 100), Ssn(1)).unwrap();
    assert_eq!(rx.set_infinite(Ssn(7), Dsn(104)), None);
    assert_eq!(
        translate(&mut rx, 1, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap(),
        [(100, vec![1, 2, 3, 4]), (102, vec![5, 6, 7, 8])]
    );
    let mut early = MappingRx::new(8, 12);
    assert_eq!(early.set_infinite(Ssn(7), Dsn(2)), None);
    assert_eq!(translate(&mut early, 3, &[3, 4, 5, 6]).unwrap(), [(0, vec![5, 6])]);
}
