//! Traces for the flash tier, in every format, and their replay by its policies.
#![no_main]

use std::path::Path;

use forebay_core::tier::PolicyKind;
use forebay_fuzz::seed;
use forebay_sim::{
    embeddings::CacheShare,
    tier::{Requests, TraceFormat},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        for (at, (name, format)) in (0_u8..).zip(TraceFormat::ALL) {
            let text: &[u8] = match format {
                TraceFormat::Pages => b"12 3 0 0\n7 1 0 0\n",
                TraceFormat::Csv => b"time,key\n1.5,7\n2,word\n0,7\n",
                TraceFormat::OracleGeneral => &[7; 72],
                TraceFormat::Numbers32 | TraceFormat::Numbers64 => b"12345678abcdefgh",
            };
            seed(name, &[&[at][..], text].concat());
        }
    },
    |data: &[u8]| {
        let Some((format, packed)) = data.split_first() else { return };
        let (_, format) = TraceFormat::ALL[usize::from(*format) % TraceFormat::ALL.len()];
        let trace = Requests::parse(Path::new("trace"), packed.to_vec(), format);
        let Ok(trace) = trace else { return };
        let share: CacheShare = "30%".parse().expect("a share");
        let optimum = trace.optimum(share);
        for policy in [PolicyKind::Lru, PolicyKind::Historic, PolicyKind::NextUse] {
            assert!(trace.replay(policy, share, optimum).hits <= optimum);
        }
    }
);
