//! What the gateway decodes of a client's request before anything is verified: the `Authorization`
//! header, the query, and the keys of `DeleteObjects`.

#![no_main]

use forebay_gateway::{encoding, keys_of_delete, parse_authorization};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for key in keys_of_delete(bytes) {
        assert!((1..=1024).contains(&key.len()));
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some(authorization) = parse_authorization(text) {
        assert!(authorization.signed_headers.iter().all(|name| !name.is_empty()));
        assert_eq!(authorization.signature.len(), 64);
        assert!(!authorization.credential.access_key.contains(['/', ',']));
    }
    // What is sent means the same as what was received, and one query has one canonical form.
    let parameters = encoding::parameters(text);
    let sent = encoding::query(&parameters).unwrap_or_default();
    assert_eq!(encoding::parameters(&sent), parameters);
    assert_eq!(encoding::canonical_query(&sent), encoding::canonical_query(text));
});
