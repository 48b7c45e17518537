//! Headers of object requests: any range, tag, date or `Content-Range` is understood or not, and
//! what is understood stays inside the object.
#![no_main]

use forebay_core::gateway::{
    byte_range::{ContentRange, RangeHeader},
    conditions::{Conditions, HttpTime, IfRange, Validators},
    etag::{EtagList, StrongEtag},
    read_plan::{SegmentState, plan},
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        for (name, text) in [
            ("bounded", "bytes=0-262143"),
            ("from", "bytes=5-"),
            ("suffix", "bytes=-100"),
            ("content", "bytes 0-9/100"),
            ("tag", "\"9b2cf535f27731c974343645a3985328-2\""),
            ("tags", "W/\"a\", \"b\", c"),
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("old date", "Sunday, 06-Nov-94 08:49:37 GMT"),
            ("oldest date", "Sun Nov  6 08:49:37 1994"),
        ] {
            seed(name, &[&[3, 0, 0, 1][..], text.as_bytes()].concat());
        }
    },
    |data: &[u8]| {
        let Some((length, value)) = data.split_first_chunk::<4>() else { return };
        // Up to 64 MiB: a plan has at most 256 segments.
        let length = u64::from(u32::from_le_bytes(*length) >> 6);
        if let RangeHeader::One(range) = RangeHeader::parse(value)
            && let Ok(bytes) = range.resolve(length)
        {
            assert!(bytes.start <= bytes.end && bytes.end <= length);
            let state = |segment: forebay_core::gateway::read_plan::SegmentIndex| {
                match value[usize::try_from(segment.0).unwrap_or(0) % value.len()] % 4 {
                    0 => SegmentState::Resident,
                    1 => SegmentState::Fetching,
                    2 => SegmentState::Admitted,
                    _ => SegmentState::Passed,
                }
            };
            let mut at = bytes.start;
            for step in plan(&bytes, length, 8, state) {
                assert_eq!(step.sent().start, at);
                at = step.sent().end;
            }
            assert_eq!(at, bytes.end);
        }
        if let Some(range) = ContentRange::parse(value) {
            assert!(range.bytes.start < range.bytes.end);
            assert!(range.length.is_none_or(|length| range.bytes.end <= length));
        }
        let etag = StrongEtag::parse(value);
        let list = EtagList::parse(value);
        if let (Some(etag), Some(list)) = (&etag, &list) {
            assert!(list.matches_strongly(etag), "a tag is the list of itself");
        }
        let date = HttpTime::parse(value);
        let known = StrongEtag::parse(b"\"a\"").expect("a strong tag");
        let conditions = Conditions {
            if_match: list.clone(),
            if_unmodified_since: date,
            if_none_match: list,
            if_modified_since: date,
            if_range: etag.map(IfRange::Etag),
        };
        conditions.check(Validators { etag: &known, last_modified: date });
    }
);
