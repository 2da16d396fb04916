//! Numbers of bytes in options, tables and plots.

use std::ops::RangeInclusive;

/// Units of bytes with their short and their long name, the largest first.
const UNITS: [(&str, &str, u32); 4] = [
    ("T", "TiB", 40),
    ("G", "GiB", 30),
    ("M", "MiB", 20),
    ("K", "KiB", 10),
];

/// Parses a number of bytes, as in `4096`, `64K`, `1MiB` or `4G`.
///
/// # Errors
/// If the text is no size, or the size is 0 or does not fit.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let named = |(short, long, _): &&(&str, &str, u32)| {
        unit.eq_ignore_ascii_case(short) || unit.eq_ignore_ascii_case(long)
    };
    let shift = match unit {
        "" => Some(0),
        _ => UNITS.iter().find(named).map(|(_, _, shift)| *shift),
    };
    let bytes = shift.and_then(|shift| digits.parse::<usize>().ok()?.checked_mul(1 << shift));
    let bytes = bytes.filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("`{text}` is not a size such as 4096, 64K, 1MiB or 4G"))
}

/// Returns a parser of sizes from `range` that are multiples of `unit`.
pub(crate) fn multiples(
    unit: usize,
    range: RangeInclusive<usize>,
) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |given| {
        let bytes = parse(given)?;
        if range.contains(&bytes) && bytes.is_multiple_of(unit) {
            return Ok(bytes);
        }
        let (first, last) = (text(*range.start()), text(*range.end()));
        let multiples = match unit {
            1 => "a size".to_owned(),
            _ => format!("a multiple of {}", text(unit)),
        };
        Err(format!("use {multiples} from {first} to {last}"))
    }
}

/// Formats a number of bytes in the largest unit of which it is a multiple, as in `64 KiB`.
pub(crate) fn text(bytes: usize) -> String {
    let fits = |(_, _, shift): &&(&str, &str, u32)| bytes.is_multiple_of(1 << shift) && bytes > 0;
    match UNITS.iter().find(fits) {
        Some((_, unit, shift)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64k"), Ok(65_536));
        assert_eq!(parse("1MiB"), Ok(1 << 20));
        assert_eq!(parse("4G"), Ok(4 << 30));
        for wrong in ["", "K", "1X", "1KB", "0", "-1", "99999999999G"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let parser = multiples(4096, 4096..=1 << 20);
        assert_eq!(parser("8K"), Ok(8192));
        for wrong in ["2K", "4097", "2M"] {
            let error = parser(wrong).expect_err(wrong);
            assert_eq!(error, "use a multiple of 4 KiB from 4 KiB to 1 MiB");
        }
    }

    #[test]
    fn sizes_are_written_in_whole_units() {
        let sizes = [0, 100, 4096, 6144, 1 << 20, 3 << 30];
        let expected = ["0 B", "100 B", "4 KiB", "6 KiB", "1 MiB", "3 GiB"];
        assert_eq!(sizes.map(text), expected);
    }
}
