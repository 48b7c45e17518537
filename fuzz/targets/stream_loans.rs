//! Messages between the owner of a store and its borrowers: refused, or encoded again to an equal
//! value.
#![no_main]

use forebay_core::streams::{
    BlockNumber, StreamName, StreamNumber,
    lending::LeaseId,
    loan::{LentExtent, LentStream, LoanReply, LoanRequest, MESSAGE_MAX},
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let name = StreamName::new("a stream").expect("a name");
        seed("hello", &LoanRequest::Hello { version: 1 }.encode());
        seed("list", &LoanRequest::List { after: Some(name.clone()) }.encode());
        seed("open", &LoanRequest::Open(name).encode());
        let first = BlockNumber(3);
        seed("extents", &LoanRequest::Extents { lease: LeaseId(1), first }.encode());
        let lent =
            LentStream { lease: LeaseId(1), number: StreamNumber(2), blocks: 3, bytes: 4 };
        seed("lent", &LoanReply::Lent(lent).encode());
        let extent = LentExtent { key: [1; 32], location: 2, generation: 3 };
        seed("places", &LoanReply::Extents(vec![extent; 3]).encode());
        seed("refused", &LoanReply::Refused("no".into()).encode());
    },
    |data: &[u8]| {
        if let Some(request) = LoanRequest::decode(data) {
            assert_eq!(request.encode(), data);
        }
        if let Some(reply) = LoanReply::decode(data) {
            let bytes = reply.encode();
            assert!(bytes.len() <= MESSAGE_MAX);
            assert_eq!(LoanReply::decode(&bytes), Some(reply));
        }
    }
);
