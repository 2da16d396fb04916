//! Generates random patterns in PCRE2's syntax, and values that may match them.

use fastrand::Rng;

/// Characters with special meaning in some construct: newlines, case-folding exceptions, word and non-word characters,
/// of one to four bytes.
const CHARS: &[char] = &[
    'a', 'b', 'c', 'A', 'B', 'k', 'K', '\u{212a}', 's', 'S', 'ſ', 'ß', 'ẞ', 'σ', 'ς', 'Σ', 'é',
    'É', '\n', '\n', '\r', '\u{85}', '\u{2028}', '\u{a0}', '\u{200d}', '_', '-', '.', '1', '9',
    ' ', '\t', 'ǆ', 'ǅ', '日', '😀', '\u{1}', 'i', 'İ', '&', '[', ']',
];

/// Properties whose tables differ between PCRE2 and other engines, and some common ones.
const PROPERTIES: &[&str] = &[
    r"\p{L}",
    r"\P{Lu}",
    r"\pN",
    r"\p{^Ll}",
    r"\p{L&}",
    r"\p{Xan}",
    r"\p{Greek}",
    r"\p{Any}",
];

const POSIX: &[&str] = &[
    "alpha", "lower", "upper", "alnum", "ascii", "blank", "cntrl", "digit", "graph", "print",
    "punct", "space", "word", "xdigit", "^alpha", "^space", "^upper",
];

/// Generator of patterns and values over a small alphabet.
pub struct Generator {
    pub rng: Rng,
    alphabet: Vec<char>,
    groups: usize,
}

impl Generator {
    /// Returns a generator with a random alphabet.
    pub fn new(mut rng: Rng) -> Generator {
        let count = rng.usize(2..6);
        let mut alphabet: Vec<char> = (0..count)
            .map(|_| CHARS[rng.usize(..CHARS.len())])
            .collect();
        alphabet.push('a');
        Generator {
            rng,
            alphabet,
            groups: 0,
        }
    }

    /// Returns option letters.
    pub fn options(&mut self) -> String {
        "imsx".chars().filter(|_| self.rng.u8(..4) == 0).collect()
    }

    /// Returns a pattern, which is usually but not always valid.
    pub fn pattern(&mut self) -> String {
        self.groups = 0;
        let depth = self.rng.usize(1..4);
        let body = self.alternatives(depth);
        match self.rng.u8(..14) {
            0 => format!("^{body}"),
            1 => format!("^{body}$"),
            2 => format!("{body}$"),
            3 => format!(".*{body}.*"),
            4 => format!("(?=.*{body}){}", self.alternatives(1)),
            5 => format!("^(?!{body}){}", self.alternatives(1)),
            6 => format!(
                "^(?=.*{body})(?!{}){}",
                self.alternatives(1),
                self.alternatives(1)
            ),
            7 => format!("^{}\\z", self.text()),
            8 => format!("{}\\z", self.text()),
            _ => body,
        }
    }

    /// Returns a value of up to a dozen characters of the alphabet.
    pub fn value(&mut self) -> String {
        let length = self.rng.usize(..12);
        (0..length).map(|_| self.char()).collect()
    }

    fn text(&mut self) -> String {
        let count = self.rng.usize(1..4);
        (0..count).map(|_| self.literal()).collect()
    }

    fn char(&mut self) -> char {
        match self.rng.u8(..16) {
            0 => CHARS[self.rng.usize(..CHARS.len())],
            1 => '\n',
            _ => self.alphabet[self.rng.usize(..self.alphabet.len())],
        }
    }

    fn alternatives(&mut self, depth: usize) -> String {
        let count = [1, 1, 1, 2, 2, 3][self.rng.usize(..6)];
        let branches: Vec<String> = (0..count).map(|_| self.sequence(depth)).collect();
        branches.join("|")
    }

    fn sequence(&mut self, depth: usize) -> String {
        let count = [0, 1, 1, 2, 2, 3, 3, 4][self.rng.usize(..8)];
        (0..count).map(|_| self.quantified(depth)).collect()
    }

    fn quantified(&mut self, depth: usize) -> String {
        let atom = self.atom(depth);
        let quantifier = match self.rng.u8(..24) {
            0 | 1 => "*",
            2 | 3 => "+",
            4 | 5 => "?",
            6 => "{2}",
            7 => "{1,3}",
            8 => "{2,}",
            9 => "*?",
            10 => "+?",
            11 => "*+",
            12 => "++",
            13 => "?+",
            14 => "{,2}",
            15 => "{0,2}+",
            _ => "",
        };
        format!("{atom}{quantifier}")
    }

    fn atom(&mut self, depth: usize) -> String {
        match self.rng.u8(..40) {
            0..=15 => self.literal(),
            16..=18 => ".".to_owned(),
            19..=22 => self.class(),
            23..=25 => self.escape(),
            26..=29 => self.look(),
            30 => PROPERTIES[self.rng.usize(..PROPERTIES.len())].to_owned(),
            31 => self.odd(),
            _ if depth == 0 => self.literal(),
            _ => self.group(depth - 1),
        }
    }

    fn literal(&mut self) -> String {
        let c = self.char();
        match self.rng.u8(..12) {
            0 => format!("\\x{{{:x}}}", u32::from(c)),
            1 => format!("\\Q{c}\\E"),
            2 if !c.is_alphanumeric() => format!("\\{c}"),
            3 => format!("\\o{{{:o}}}", u32::from(c)),
            _ if ".[]{}()*+?^$|\\".contains(c) => format!("\\{c}"),
            _ => c.to_string(),
        }
    }

    fn escape(&mut self) -> String {
        let escapes = [
            r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\h", r"\H", r"\v", r"\V", r"\R", r"\N",
            r"\n", r"\t", r"\012", r"\x0a", r"\cA", r"\X", r"\K", r"\e", r"\x41", r"\R", r"\0",
        ];
        escapes[self.rng.usize(..escapes.len())].to_owned()
    }

    fn look(&mut self) -> String {
        let looks = ["^", "$", r"\b", r"\B", r"\A", r"\Z", r"\z", r"\G"];
        looks[self.rng.usize(..looks.len())].to_owned()
    }

    fn odd(&mut self) -> String {
        let group = self.rng.usize(1..=self.groups.max(1));
        let odd = [
            format!("\\{group}"),
            format!("\\g{{{group}}}"),
            format!("(?{group})"),
            "(?#note)".to_owned(),
            "(?i)".to_owned(),
            "(?s-i)".to_owned(),
            "(?m)".to_owned(),
            "(?x) # end\n".to_owned(),
            "(*ACCEPT)".to_owned(),
            "(?^)".to_owned(),
            "x{2".to_owned(),
            "[[]a]".to_owned(),
            "[a&&b]".to_owned(),
        ];
        odd[self.rng.usize(..odd.len())].clone()
    }

    fn group(&mut self, depth: usize) -> String {
        let opening = match self.rng.u8(..20) {
            0 => "(?i:",
            1 => "(?s:",
            2 => "(?m:",
            3 => "(?x: ",
            4 => "(?=",
            5 => "(?!",
            6 => "(?<=",
            7 => "(?<!",
            8 => "(?>",
            9 => "(?|",
            10..=14 => {
                self.groups += 1;
                "("
            }
            _ => "(?:",
        };
        format!("{opening}{})", self.alternatives(depth))
    }

    fn class(&mut self) -> String {
        let negated = if self.rng.u8(..3) == 0 { "^" } else { "" };
        let count = self.rng.usize(1..4);
        let items: String = (0..count).map(|_| self.class_item()).collect();
        format!("[{negated}{items}]")
    }

    fn class_item(&mut self) -> String {
        match self.rng.u8(..12) {
            0 => {
                let (mut low, mut high) = (self.char(), self.char());
                if low > high {
                    std::mem::swap(&mut low, &mut high);
                }
                format!("{}-{}", in_class(low), in_class(high))
            }
            1 => "a-c".to_owned(),
            2 => [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\h", r"\v"][self.rng.usize(..8)]
                .to_owned(),
            3 => format!("[:{}:]", POSIX[self.rng.usize(..POSIX.len())]),
            4 => PROPERTIES[self.rng.usize(..PROPERTIES.len())].to_owned(),
            5 => r"\n".to_owned(),
            _ => {
                let c = self.char();
                in_class(c)
            }
        }
    }
}

fn in_class(c: char) -> String {
    if "[]^-\\".contains(c) {
        format!("\\{c}")
    } else {
        c.to_string()
    }
}
