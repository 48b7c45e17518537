//! Content addresses of blobs and ids of datasets.

use super::hex_name;

hex_name! {
    /// A blob's only name: BLAKE3 over its content, keyed with its namespace's key. Equal content
    /// in one namespace has one address. Computed by [`Namespace`](super::Namespace).
    Address, 32, "an address"
}

hex_name! {
    /// A hash over a dataset's ordered addresses, lengths and chunking (see
    /// [`DatasetIdHasher`](crate::dataset::DatasetIdHasher)). Locations and labels are not part of
    /// it, so a mirror of a dataset has the same id.
    DatasetId, 32, "a dataset id"
}

#[cfg(test)]
mod tests {
    use crate::ids::HexError;

    use super::*;

    #[test]
    fn addresses_print_and_parse_as_hexadecimal() {
        let address = Address::from_bytes(std::array::from_fn(|i| u8::try_from(i * 7).unwrap()));
        assert_eq!(address.to_string().parse(), Ok(address));
        assert_eq!(address.to_string().to_uppercase().parse(), Ok(address));
    }

    #[test]
    fn wrong_lengths_and_digits_are_named() {
        assert_eq!(
            "abc".parse::<Address>(),
            Err(HexError::Length { what: "an address", expected: 64, found: 3 })
        );
        let text = format!("{}g", "0".repeat(63));
        assert_eq!(
            text.parse::<Address>(),
            Err(HexError::Digit { what: "an address", position: 63 })
        );
        assert!("é".repeat(32).parse::<Address>().is_err(), "64 bytes, but not 64 digits");
    }
}
