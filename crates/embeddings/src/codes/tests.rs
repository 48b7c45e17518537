//! Properties of all codes, and bytes as PyTorch and FBGEMM write them.

#![expect(clippy::float_cmp, reason = "exact values are expected")]

use super::*;

/// Rows of 36 numbers of several kinds, among them hostile ones.
fn rows(random: &mut fastrand::Rng) -> Vec<Vec<f32>> {
    let mut normal = |scale: f32| {
        let sum: f32 = (0..12).map(|_| random.f32()).sum();
        (sum - 6.0) * scale
    };
    let mut rows: Vec<Vec<f32>> = Vec::new();
    for scale in [1e-6, 1e-3, 0.05, 0.1, 0.3, 1.0, 100.0] {
        rows.extend((0..20).map(|_| (0..36).map(|_| normal(scale)).collect()));
    }
    rows.push(vec![0.0; 36]);
    rows.push(vec![0.25; 36]);
    rows.push(vec![-0.0; 36]);
    rows.push((0..36).map(|at| if at == 7 { 1.0 } else { 0.001 }).collect());
    rows.push(vec![f32::MIN_POSITIVE / 4.0; 36]);
    rows
}

fn coded(code: Code, row: &[f32], range: RangeChoice) -> (Vec<u8>, f32) {
    let mut bytes = vec![0; code.row_bytes(row.len() as u64) as usize];
    let error = code.encode(row, range, &mut bytes);
    (bytes, error)
}

fn decoded(code: Code, bytes: &[u8], dimension: usize) -> Vec<f32> {
    let mut row = vec![f32::NAN; dimension];
    code.decode(bytes, &mut row);
    row
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn every_answer_is_within_its_stated_error() {
    let mut random = fastrand::Rng::with_seed(1);
    for row in rows(&mut random) {
        let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for code in Code::ALL {
            for range in [RangeChoice::Full, RangeChoice::Searched] {
                let (bytes, error) = coded(code, &row, range);
                let answer = decoded(code, &bytes, 36);
                let difference = row.iter().zip(&answer);
                let difference =
                    difference.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>();
                let bound = f64::from(error) * norm;
                assert!(
                    error == f32::INFINITY || difference.sqrt() <= bound * (1.0 + 1e-6),
                    "{code}: {row:?} has the error {error}, and {answer:?} is the answer"
                );
            }
        }
    }
}

/// What a user may expect of trained rows: half precision is as good as exact, and four bits with a
/// searched range are better than EVStore's.
#[test]
fn errors_of_ordinary_rows_are_as_documented() {
    let mut random = fastrand::Rng::with_seed(2);
    let ordinary: Vec<Vec<f32>> = rows(&mut random).drain(40..120).collect();
    let mean = |code, range| {
        let errors = ordinary.iter().map(|row| coded(code, row, range).1);
        errors.sum::<f32>() / ordinary.len() as f32
    };
    let full = |code| mean(code, RangeChoice::Full);
    let searched = mean(Code::I4, RangeChoice::Searched);
    assert!(full(Code::F16) < 0.0005, "{}", full(Code::F16));
    assert!(full(Code::Bf16) < 0.004);
    assert!(full(Code::I8) < 0.006, "{}", full(Code::I8));
    assert!(full(Code::I4) < 0.1, "{}", full(Code::I4));
    assert!(searched < 0.97 * full(Code::I4), "{searched} against {}", full(Code::I4));
    assert!(full(Code::Ev4) > 2.0 * searched);
    assert!((full(Code::I8Tbe) - full(Code::I8)).abs() < 0.002);
}

#[test]
fn adding_is_decoding_and_summing() {
    let mut random = fastrand::Rng::with_seed(3);
    for row in rows(&mut random) {
        for code in Code::ALL {
            let (bytes, _) = coded(code, &row, RangeChoice::Searched);
            let mut sum: Vec<f32> = (0..36).map(|at| at as f32).collect();
            let expected: Vec<f32> =
                decoded(code, &bytes, 36).iter().zip(&sum).map(|(row, sum)| sum + row).collect();
            code.add(&bytes, &mut sum);
            assert_eq!(bits(&sum), bits(&expected), "{code}");
        }
    }
}

#[test]
fn every_cpu_writes_and_reads_the_same_bits() {
    let mut random = fastrand::Rng::with_seed(4);
    for row in rows(&mut random) {
        for code in Code::ALL {
            for range in [RangeChoice::Full, RangeChoice::Searched] {
                let (bytes, _) = coded(code, &row, range);
                let mut plain = vec![0; bytes.len()];
                Encode { code, row: &row, range, out: &mut plain }.run();
                assert_eq!(plain, bytes, "{code}");
                let mut out = vec![0.0; 36];
                let put = |at: &mut f32, number| *at = number;
                Decode { code, bytes: &bytes, out: &mut out, put }.run();
                assert_eq!(bits(&out), bits(&decoded(code, &bytes, 36)), "{code}");
            }
        }
    }
}

/// Odd dimensions, single numbers and empty rows.
#[test]
fn rows_of_any_dimension_come_back() {
    for dimension in [0_usize, 1, 2, 3, 7, 8, 9, 15, 17, 33] {
        let row: Vec<f32> = (0..dimension).map(|at| at as f32 / 64.0 - 0.1).collect();
        for code in Code::ALL {
            let (bytes, error) = coded(code, &row, RangeChoice::Searched);
            assert!(error < 0.3, "{code}, {dimension}: {error}");
            assert_eq!(decoded(code, &bytes, dimension).len(), dimension);
        }
    }
}

#[test]
fn rows_that_a_code_cannot_hold_have_an_infinite_error() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for code in Code::ALL {
            let mut row = vec![0.1; 12];
            row[5] = bad;
            let (_, error) = coded(code, &row, RangeChoice::Searched);
            // Half precision has infinities and NaN of its own, but no norm to compare with.
            assert_eq!(error, f32::INFINITY, "{code} of {bad}");
        }
    }
    let wide: Vec<f32> = (0..12).map(|at| at as f32 * 1e6).collect();
    assert_eq!(coded(Code::I4, &wide, RangeChoice::Full).1, f32::INFINITY, "the scale overflows");
    assert!(coded(Code::I8, &wide, RangeChoice::Full).1 < 0.01, "its scale is a single");
}

#[test]
fn half_precision_is_ieee() {
    for bits in 0..=u16::MAX {
        let number = half::from_f16(bits);
        if number.is_nan() {
            assert!(half::from_f16(half::to_f16(number)).is_nan());
        } else {
            assert_eq!(half::to_f16(number), bits, "{number}");
        }
    }
    for (number, expected) in [
        (1.0_f32, 0x3c00),
        (65_519.0, 0x7bff),
        (65_520.0, 0x7c00),
        (-1e9, 0xfc00),
        (5.960_464_5e-8, 0x0001),
        (2.980_232_2e-8, 0x0000), // half of the smallest number ties to even
        (2.980_233e-8, 0x0001),
        (1.000_488_3, 0x3c00), // ties to even
        (1.001_464_8, 0x3c02),
        (-0.0, 0x8000),
    ] {
        assert_eq!(half::to_f16(number), expected, "{number}");
    }
    assert_eq!(half::to_bf16(1.003_906_3), 0x3f80, "ties to even");
    assert_eq!(half::from_bf16(0x3fc0), 1.5);
    assert!(half::from_bf16(half::to_bf16(f32::NAN)).is_nan());
}

/// "0.23 is mapped to 156" (6.3b).
#[test]
fn evstore_codes_are_those_of_the_text() {
    let codes = |numbers: &[f32]| coded(Code::Ev8, numbers, RangeChoice::Full).0;
    assert_eq!(codes(&[-1.0, 0.0, 0.23, 1.0, 7.0]), [0, 127, 156, 254, 254]);
    let (bytes, _) = coded(Code::Ev16, &[1.0, -1.0, 0.0], RangeChoice::Full);
    let codes: Vec<u16> = bytes.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two)).collect();
    assert_eq!(codes, [65_534, 65_535, 0], "an odd code is negative");
    let (bytes, _) = coded(Code::Ev4, &[0.06, -0.06, 0.0], RangeChoice::Full);
    assert_eq!(decoded(Code::Ev4, &bytes, 3), [0.0625, -0.0625, 0.0]);
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().as_chunks::<2>().0.iter();
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// Rows, and what `embedding_bag_byte_prepack` and `embedding_bag_4bit_prepack` of PyTorch 2.14 and
/// `quantize_embs` of FBGEMM 1.9 make of them.
#[test]
fn rows_have_the_bytes_of_pytorch_and_fbgemm() {
    let rows: [[u32; 8]; 6] = [
        [
            0x3da4_82cd,
            0x3c8f_3938,
            0x3c11_c81f,
            0xbd7b_6100,
            0x3b97_54a6,
            0xbe0c_1c18,
            0x3d0a_3ced,
            0x3dcf_1398,
        ],
        [0x3f00_0000; 8],
        [0; 8],
        [0x3089_705f, 0x3109_705f, 0, 0, 0, 0, 0, 0x3089_705f],
        [
            0xc040_0000,
            0x4020_0000,
            0x3dcc_cccd,
            0xbdcc_cccd,
            0x40e0_0000,
            0xc100_0000,
            0,
            0x3a83_126f,
        ],
        [
            0x461c_4000,
            0xc69c_4000,
            0x453b_8000,
            0x3f80_0000,
            0x4000_0000,
            0x4040_0000,
            0x4080_0000,
            0x40a0_0000,
        ],
    ];
    let expected = [
        ("e9a59c519800b7ff7e9a743a181c0cbe", "ae5909fb102461b0"),
        ("0000000000000000000000000000003f", "00000000003c0038"),
        ("00000000000000000000000000000000", "00000000003c0000"),
        ("152a00000000001559fa092d00000000", "00000000003c0000"),
        ("55b28a86ff008888f1f0703d000000c1", "a5880f88003c00c8"),
        ("ff00c4aaaaaaaaaa4b4beb4200409cc6", "0facaaaad067e2f4"),
    ];
    let expected_tbe = [
        ("a51361b0e9a59c519800b7ff", "102461b0ae5909fb"),
        ("000000380000000000000000", "003c003800000000"),
        ("000000000000000000000000", "003c000000000000"),
        ("00000000152a000000000015", "003c000000000000"),
        ("882b00c855b28a86ff008888", "003c00c8a5880f88"),
        ("5a57e2f4ff00c4aaaaaaaaaa", "d067e2f40facaaaa"),
    ];
    for ((row, fused), tbe) in rows.iter().zip(expected).zip(expected_tbe) {
        let row = row.map(f32::from_bits);
        for (code, expected) in
            [(Code::I8, fused.0), (Code::I4, fused.1), (Code::I8Tbe, tbe.0), (Code::I4Tbe, tbe.1)]
        {
            let found = coded(code, &row, RangeChoice::Full).0;
            assert_eq!(found, bytes(expected), "{code} of {row:?}");
        }
    }
}

#[test]
fn names_are_parsed_and_errors_list_them() {
    for code in Code::ALL {
        assert_eq!(code.name().parse(), Ok(code));
    }
    for (code, dtype) in [("i4", "int4"), ("i8-tbe", "int8-tbe"), ("bf16", "bfloat16")] {
        assert_eq!(code.parse::<Code>(), dtype.parse::<Code>(), "a code has both names");
        assert_eq!(code.parse::<Dtype>(), dtype.parse::<Dtype>(), "a dtype has both names");
    }
    let error = "ev4".parse::<Dtype>().unwrap_err().to_string();
    assert!(error.contains("no dtype `ev4`; there are float32"), "{error}");
    let error = "i2".parse::<Code>().unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no code `i2`; there are f16, bf16, i8, i4, i8-tbe, i4-tbe, ev16, ev8, ev4"
    );
}
