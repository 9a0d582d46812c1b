//! Stand-ins in the API's document for fields that are read by hand.
//!
//! A field whose forms no type holds is read member by member, so that a refusal names the place. Its
//! schema stands beside that reader, under a name of its own, and is checked against it from outside:
//! no test finds a body that the server takes and the document forbids.

/// Defines types that have a schema and no values: `/// Doc` `Name: a JSON value;`, repeated.
macro_rules! described {
    ($($(#[doc = $doc:literal])+ $name:ident: $schema:expr;)+) => {$(
        $(#[doc = $doc])+
        pub(crate) enum $name {}

        impl ::schemars::JsonSchema for $name {
            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                let mut schema: ::serde_json::Value = $schema;
                schema["description"] = [$($doc.trim()),+].join(" ").into();
                schema.try_into().expect("a schema is an object")
            }
        }
    )+};
}
pub(crate) use described;
