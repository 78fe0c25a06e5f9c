// Addresses of states: `#/` is the list, `#/s/ID/TAB/ARG?name=value` a state of a session.

import {known} from './dom.js';

export function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?');
  const [kind, id, tab, arg] = path.split('/').map(decode);
  const params = Object.fromEntries(new URLSearchParams(query));
  return kind === 's' && id ? {id, tab: tab || 'overview', arg: arg || null, params} : {id: null, params};
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function address(id, tab = 'overview', arg = null, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== '' && known(value))).toString();
  return `#/s/${encodeURIComponent(id)}/${tab}${arg === null ? '' : `/${encodeURIComponent(arg)}`}${query ? `?${query}` : ''}`;
}
