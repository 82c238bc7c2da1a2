/** All true in the shipped page; see switches.ts. */
declare const FEATURES: Readonly<Record<import("../switches").Feature, boolean>>;
