//! The enums whose every variant is one word on the wire.

/// Defines an enum from a table of variants and their words. A word is a `tt`: utoipa does not see a `literal`.
macro_rules! word_enum {
    ($(#[$attribute:meta])* $name:ident { $($(#[doc = $doc:literal])* $variant:ident $word:tt,)* }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        $(#[$attribute])*
        pub enum $name {
            $($(#[doc = $doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant,)*];

            /// The word on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

pub(crate) use word_enum;
