import js from '@eslint/js'

const globals = Object.fromEntries(
  [
    'AbortController',
    'AbortSignal',
    'Atomics',
    'Buffer',
    'SharedArrayBuffer',
    'TextDecoder',
    'URL',
    'clearTimeout',
    'console',
    'performance',
    'process',
    'setImmediate',
    'setTimeout',
  ].map((name) => [name, 'readonly']),
)

export default [
  { ignores: ['node_modules/', '**/*.d.ts', '**/*.ts'] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: 'module', globals },
    rules: {
      eqeqeq: 'error',
      'no-var': 'error',
      'prefer-const': 'error',
      'no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      'no-shadow': 'off',
    },
  },
]
