//! YAML text as a tree of nodes that know where they stand.
//!
//! Scalars stay text: what they mean depends on the key they are given for, so `012` is a text
//! where a text is wanted. Aliases are expanded; merge keys (`<<`), tags of one's own and several
//! documents in one file are refused.

use std::collections::BTreeMap;

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, options};

use crate::flow_variables::EscapedText;
use crate::problem::TextSpan;

/// The largest file that is read, in bytes.
pub const MAX_FILE_SIZE: usize = 1 << 20;
/// The deepest nesting of lists and sections.
pub const MAX_DEPTH: usize = 32;
/// The most nodes of one file, counted after aliases are expanded.
pub const MAX_NODES: usize = 50_000;

/// A node of the tree.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub(crate) span: TextSpan,
    pub(crate) body: Body,
}

/// The content of a node.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// A text, a number, a flag: the reader decides.
    Scalar {
        text: String,
        /// Written without quotes, so that `null` and the like have their meaning.
        plain: bool,
    },
    /// A list.
    List(Vec<YamlNode>),
    /// A section, in the order of the file.
    Map(Vec<(YamlNode, YamlNode)>),
    /// One entry of a list that stands in a lower layer; only overrides make these.
    Item(usize, Box<YamlNode>),
}

impl YamlNode {
    /// Whether the node is nothing: left out, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.body, Body::Scalar { text, plain: true } if is_null_word(text))
    }

    /// The kind of the node, in words.
    pub(crate) fn noun(&self) -> &'static str {
        match &self.body {
            Body::Scalar { .. } => "a single value",
            Body::List(_) => "a list",
            Body::Map(_) | Body::Item(..) => "a section",
        }
    }

    /// The nodes directly inside, keys included.
    pub(crate) fn children(&self) -> Vec<&Self> {
        match &self.body {
            Body::Scalar { .. } => Vec::new(),
            Body::List(items) => items.iter().collect(),
            Body::Map(pairs) => pairs.iter().flat_map(|(k, v)| [k, v]).collect(),
            Body::Item(_, node) => vec![node],
        }
    }

    fn size(&self) -> usize {
        1 + self.children().into_iter().map(Self::size).sum::<usize>()
    }

    fn depth(&self) -> usize {
        let is_scalar = matches!(self.body, Body::Scalar { .. });
        let inside = self.children().into_iter().map(Self::depth).max();
        usize::from(!is_scalar) + inside.unwrap_or(0)
    }
}

/// Whether a plain scalar means nothing.
pub(crate) fn is_null_word(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Why a text is no tree.
#[derive(Debug)]
pub(crate) struct YamlRefusal {
    pub(crate) span: TextSpan,
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

/// Reads one text. `Ok(None)` is an empty one.
pub(crate) fn parse(text: &str, source: usize) -> Result<Option<YamlNode>, YamlRefusal> {
    if text.len() > MAX_FILE_SIZE {
        let size = text.len();
        let message = format!("has {size} bytes, and at most {MAX_FILE_SIZE} are read");
        return Err(refuse(TextSpan::top_of(source), &message, None));
    }
    // The parser gives up later than we do, so that the message is ours and names the limit.
    let options = options! {
        emit_comments: false,
        flow_nesting_limit: 2 * MAX_DEPTH,
        block_nesting_limit: 2 * MAX_DEPTH,
    };
    let escaped = EscapedText::new(text);
    let mut builder = Builder {
        source,
        escaped: &escaped,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        nodes: 0,
        documents: 0,
        root: None,
    };
    for event in Parser::new_from_str_with_options(escaped.text(), options) {
        let (event, span) = event.map_err(|error| builder.syntax(&error))?;
        builder.take(event, builder.span(&span.start, &span.end))?;
    }
    Ok(builder.root)
}

/// A list or a section whose end has not come yet.
struct Open {
    span: TextSpan,
    anchor: usize,
    is_map: bool,
    items: Vec<YamlNode>,
}

struct Builder<'a> {
    source: usize,
    escaped: &'a EscapedText<'a>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, YamlNode>,
    nodes: usize,
    documents: usize,
    root: Option<YamlNode>,
}

impl Builder<'_> {
    fn span(&self, start: &Marker, end: &Marker) -> TextSpan {
        let from = self.escaped.offset(start.index(), start.byte_offset());
        let to = self.escaped.offset(end.index(), end.byte_offset());
        TextSpan {
            source: self.source,
            start: from,
            end: to.max(from),
            line: start.line().max(1),
            column: start.col() + 1,
        }
    }

    fn syntax(&self, error: &ScanError) -> YamlRefusal {
        let span = self.within(self.span(error.marker(), error.marker()));
        // The parser looks ahead, so on a very deep file it gives up before we see the depth.
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            return too_deep(span);
        }
        let info = self.escaped.unescape(&error.info());
        let is_open = matches!(error.kind(), ErrorKind::InvalidQuotedScalarIndent);
        let hint = is_open.then_some("a quote above may not be closed");
        refuse(span, &format!("is not valid YAML: {info}"), hint)
    }

    /// The same place, or the end of the last line that says something. The parser also complains of
    /// something missing after the end of the file, where there is no line to show.
    fn within(&self, span: TextSpan) -> TextSpan {
        let text = self.escaped.original();
        let end = text.trim_end().len();
        if span.start <= end {
            return span;
        }
        let line = text[..end].rfind('\n').map_or(0, |at| at + 1);
        TextSpan {
            start: end,
            end,
            line: 1 + text[..line].matches('\n').count(),
            column: 1 + text[line..end].chars().count(),
            ..span
        }
    }

    fn take(&mut self, event: Event<'_>, span: TextSpan) -> Result<(), YamlRefusal> {
        match event {
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentEnd
            | Event::Anchor(..)
            | Event::Comment(..) => {}
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let hint = Some("use one file each");
                    return Err(refuse(span, "holds a second document", hint));
                }
            }
            Event::Scalar(.., Some(tag))
            | Event::SequenceStart(.., Some(tag))
            | Event::MappingStart(.., Some(tag))
                if tag.is_custom() =>
            {
                let message = "carries a tag, and tags have no meaning here";
                return Err(refuse(span, message, None));
            }
            Event::Scalar(text, style, anchor, _) => {
                let body = Body::Scalar {
                    text: self.escaped.unescape(&text),
                    plain: style == ScalarStyle::Plain,
                };
                self.place(YamlNode { span, body }, anchor, 1)?;
            }
            Event::SequenceStart(_, anchor, _) => self.begin(span, anchor, false)?,
            Event::MappingStart(_, anchor, _) => self.begin(span, anchor, true)?,
            Event::SequenceEnd | Event::MappingEnd => self.end(span)?,
            Event::Alias(id) => self.alias(id, span)?,
            // Its name is not repeated: a secret that begins with a star reads as an alias.
            Event::UnresolvedAlias(_) => {
                return Err(refuse(span, "names an anchor that is not there", None));
            }
            // Events the parser may add one day are no values, or it would break its users.
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, span: TextSpan, anchor: usize, is_map: bool) -> Result<(), YamlRefusal> {
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(span));
        }
        self.open.push(Open {
            span,
            anchor,
            is_map,
            items: Vec::new(),
        });
        Ok(())
    }

    fn end(&mut self, end: TextSpan) -> Result<(), YamlRefusal> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let mut span = open.span;
        // A block ends where the next thing begins, which may be lines below its last value.
        let last = open.items.last().map_or(span.end, |node| node.span.end);
        span.end = if end.end > end.start {
            end.end
        } else {
            last.max(span.end)
        };
        let body = if open.is_map {
            let mut pairs = Vec::with_capacity(open.items.len() / 2);
            let mut items = open.items.into_iter();
            while let (Some(key), Some(value)) = (items.next(), items.next()) {
                refuse_key(&key)?;
                pairs.push((key, value));
            }
            Body::Map(pairs)
        } else {
            Body::List(open.items)
        };
        // The nodes inside were counted when they came.
        self.place(YamlNode { span, body }, open.anchor, 1)
    }

    fn alias(&mut self, id: usize, span: TextSpan) -> Result<(), YamlRefusal> {
        let Some(target) = self.anchors.get(&id) else {
            return Err(refuse(span, "is an alias of something it stands in", None));
        };
        let node = YamlNode {
            span,
            body: target.body.clone(),
        };
        let size = node.size();
        if self.open.len() + node.depth() > MAX_DEPTH {
            return Err(too_deep(span));
        }
        self.place(node, 0, size)
    }

    fn place(&mut self, node: YamlNode, anchor: usize, size: usize) -> Result<(), YamlRefusal> {
        self.nodes += size;
        if self.nodes > MAX_NODES {
            let message = format!("makes the file larger than {MAX_NODES} values");
            let hint = Some("aliases count each time they are used");
            return Err(refuse(node.span, &message, hint));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.items.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

fn refuse_key(key: &YamlNode) -> Result<(), YamlRefusal> {
    match &key.body {
        Body::Scalar { text, plain: true } if text == "<<" => {
            let hint = Some("write the keys out, or give a whole section as an alias");
            let message = "is a merge key, and these are not supported";
            Err(refuse(key.span, message, hint))
        }
        Body::Scalar { .. } => Ok(()),
        Body::List(_) | Body::Map(_) | Body::Item(..) => {
            let message = "is not a name, so it cannot be a key";
            Err(refuse(key.span, message, None))
        }
    }
}

fn too_deep(span: TextSpan) -> YamlRefusal {
    let message = format!("is nested deeper than {MAX_DEPTH} levels");
    refuse(span, &message, None)
}

fn refuse(span: TextSpan, message: &str, hint: Option<&'static str>) -> YamlRefusal {
    YamlRefusal {
        span,
        message: message.to_owned(),
        hint,
    }
}
