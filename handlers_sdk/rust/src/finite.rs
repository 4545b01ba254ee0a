//! Finds NaN and infinities in an output. serde_json writes `null` in their place, so its text does not show them.

use std::fmt;

use serde::ser::{self, Serialize};

/// An error if the value holds a float that is no number of JSON.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), NotFinite> {
    value.serialize(Finite)
}

/// The value holds NaN or an infinity.
#[derive(Debug)]
pub(crate) struct NotFinite;

impl fmt::Display for NotFinite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("NaN or Infinity")
    }
}

impl std::error::Error for NotFinite {}

impl ser::Error for NotFinite {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self // only a type's own `serialize` fails here, and it would have failed before, for serde_json
    }
}

/// Writes nothing, and looks at each float.
#[derive(Clone, Copy)]
struct Finite;

type Checked = Result<(), NotFinite>;

macro_rules! ignored {
    ($($function:ident: $kind:ty),+) => { $(fn $function(self, _: $kind) -> Checked { Ok(()) })+ };
}

impl ser::Serializer for Finite {
    type Ok = ();
    type Error = NotFinite;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    ignored!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    ignored!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_char: char);
    ignored!(serialize_i128: i128, serialize_u128: u128, serialize_str: &str, serialize_bytes: &[u8]);
    ignored!(serialize_unit_struct: &'static str);

    fn serialize_f32(self, value: f32) -> Checked {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Checked {
        if value.is_finite() {
            Ok(())
        } else {
            Err(NotFinite)
        }
    }

    fn serialize_none(self) -> Checked {
        Ok(())
    }

    fn serialize_unit(self) -> Checked {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Checked {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, NotFinite> {
        Ok(self)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Self, NotFinite> {
        Ok(self)
    }
}

macro_rules! elements {
    ($($kind:ident: $function:ident),+) => { $(
        impl ser::$kind for Finite {
            type Ok = ();
            type Error = NotFinite;

            fn $function<T: Serialize + ?Sized>(&mut self, value: &T) -> Checked {
                value.serialize(*self)
            }

            fn end(self) -> Checked {
                Ok(())
            }
        }
    )+ };
}

elements!(SerializeSeq: serialize_element, SerializeTuple: serialize_element);
elements!(SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field);

macro_rules! members {
    ($($kind:ident),+) => { $(
        impl ser::$kind for Finite {
            type Ok = ();
            type Error = NotFinite;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Checked {
                value.serialize(*self)
            }

            fn end(self) -> Checked {
                Ok(())
            }
        }
    )+ };
}

members!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Finite {
    type Ok = ();
    type Error = NotFinite;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Checked {
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Checked {
        value.serialize(*self)
    }

    fn end(self) -> Checked {
        Ok(())
    }
}
