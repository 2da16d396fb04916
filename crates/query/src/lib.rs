//! Part of Forebay.
