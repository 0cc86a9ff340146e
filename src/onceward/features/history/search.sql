-- Full-text search of bodies: created when an agent opts in, dropped when it opts out. Bodies are indexed later, in slices,
-- so that sending and accepting pay nothing, and programs whose SQLite lacks FTS5 can still write.

CREATE TABLE _onceward_search_docs (
    doc INTEGER PRIMARY KEY,
    id  TEXT NOT NULL
) STRICT;

CREATE VIRTUAL TABLE _onceward_search_text USING fts5 (body, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2');
