//! The text form of a join token, which survives copying, line wrapping and pasting.
//!
//! The text is `sbt2-` followed by base32 (RFC 4648 alphabet, lower case, no padding) of: the token's length, 2 bytes
//! big-endian; the token; the CRC-32 of both, 4 bytes big-endian. White space is ignored and upper case is accepted.
//! The length distinguishes a truncated text from a damaged one.

use super::TokenError;

const PREFIX: &str = "sbt2-";
/// Maximum characters that are read.
const TEXT_MAX: usize = 1024;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

pub(super) fn write(token: &[u8]) -> String {
    let mut bytes = (token.len() as u16).to_be_bytes().to_vec();
    bytes.extend(token);
    bytes.extend(crc32fast::hash(&bytes).to_be_bytes());
    format!("{PREFIX}{}", base32(&bytes))
}

pub(super) fn read(text: &str) -> Result<Vec<u8>, TokenError> {
    let letters: String = text.chars().filter(|c| !c.is_whitespace()).take(TEXT_MAX + 1).collect();
    let letters = letters.to_ascii_lowercase();
    let Some(letters) = letters.strip_prefix(PREFIX) else {
        return Err(match PREFIX.starts_with(&letters) {
            true => TokenError::Truncated { has: 0, whole: None },
            false => TokenError::Prefix,
        });
    };
    if let Some(at) = letters.chars().position(|c| value(c).is_none()) {
        return Err(TokenError::Character { at: PREFIX.len() + at + 1 });
    }
    let bytes = unbase32(letters);
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
        return Err(TokenError::Truncated { has: letters.len(), whole: None });
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let whole = (8 * (2 + length + 4)).div_ceil(5);
    match letters.len() {
        has if has < whole => return Err(TokenError::Truncated { has, whole: Some(whole) }),
        has if has > whole => return Err(TokenError::TooLong { has, whole }),
        _ => {}
    }
    let (token, sum) = rest.split_at_checked(length).ok_or(TokenError::Damaged)?;
    match sum == crc32fast::hash(&bytes[..2 + length]).to_be_bytes() {
        true => Ok(token.to_vec()),
        false => Err(TokenError::Damaged),
    }
}

pub(super) fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let letters = (8 * bytes.len()).div_ceil(5);
    let value = |letter: usize| (0..5).fold(0, |value, at| value << 1 | bit(5 * letter + at));
    (0..letters).map(|letter| char::from(LETTERS[usize::from(value(letter))])).collect()
}

/// Decodes whole bytes and ignores leftover bits.
fn unbase32(letters: &str) -> Vec<u8> {
    let (mut bytes, mut held, mut bits) = (Vec::with_capacity(letters.len() * 5 / 8), 0u32, 0);
    for value in letters.chars().filter_map(value) {
        held = held << 5 | u32::from(value);
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

fn value(c: char) -> Option<u8> {
    match c {
        'a'..='z' => Some(c as u8 - b'a'),
        '2'..='7' => Some(c as u8 - b'2' + 26),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_that_of_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(base32(plain.as_bytes()), encoded);
            assert_eq!(unbase32(encoded), plain.as_bytes());
        }
    }
}
