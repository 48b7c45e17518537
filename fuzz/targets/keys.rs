//! Namespace key files: refused, or decoded and encoded to an equal key.
#![no_main]

use forebay_core::Namespace;
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let namespace = Namespace::secret([0xa5; 32]).expect("a key");
        seed("key", namespace.to_key_file().as_bytes());
    },
    |text: &str| {
        if let Ok(namespace) = Namespace::from_key_file(text) {
            assert!(!namespace.is_public());
            assert_eq!(Namespace::from_key_file(&namespace.to_key_file()), Ok(namespace));
        }
    }
);
